/*
 * Output that the library writes itself, when something is in its way.
 *
 *   printing CASE
 *
 * CASE is the name of one of the functions in main.
 */
#include <assert.h>
#include <errno.h>
#include <iof.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RACES = 10 };

static const char *const job = "job";

static iof_info_t flag(const char *key)
{
    iof_info_t info;
    bool value = true;
    assert(iof_Info_load(&info, key, &value, IOF_BOOL) == IOF_SUCCESS);
    return info;
}

static iof_info_t text(const char *key, const char *value)
{
    iof_info_t info;
    assert(iof_Info_load(&info, key, value, IOF_STRING) == IOF_SUCCESS);
    return info;
}

static iof_status_t spawn(const char *name, char *script, const iof_info_t *info, size_t ninfo)
{
    char *args[] = {"sh", "-c", script, NULL};
    iof_app_t app = {.cmd = "sh", .argv = args, .maxprocs = 1};
    iof_info_t infos[3] = {text(IOF_NSPACE, name)};
    assert(ninfo <= 2);
    for (size_t i = 0; i < ninfo; i++) {
        infos[i + 1] = info[i];
    }
    return iof_server_spawn(infos, ninfo + 1, &app, 1, NULL);
}

static void pull(const char *name, const iof_info_t *info, size_t ninfo, iof_iof_cbfunc_t cbfunc)
{
    iof_proc_t all;
    assert(iof_Load_procid(&all, name, IOF_RANK_WILDCARD) == IOF_SUCCESS);
    assert(iof_IOF_pull(&all, 1, info, ninfo, IOF_FWD_STDOUT_CHANNEL, cbfunc, NULL, NULL) > 0);
}

/* Runs a job without stdin, stdout and stderr. Files of the library do not have their numbers. */
static void closed(void)
{
    assert(iof_server_init(NULL, NULL, 0) == IOF_SUCCESS);
    pull(job, NULL, 0, NULL);
    assert(spawn(job, "echo x", NULL, 0) == IOF_SUCCESS);
    assert(iof_server_wait(job, NULL) == IOF_SUCCESS);
    for (int fd = 0; fd <= 2; fd++) {
        char byte = 'x';
        errno = 0;
        if (write(fd, &byte, 1) != -1 || errno != EBADF || read(fd, &byte, 1) != -1 || errno != EBADF) {
            exit(10 + fd);
        }
    }
    assert(iof_server_finalize() == IOF_SUCCESS);
}

/* Pushes the program's own stdin, which is closed. */
static void push_stdin(void)
{
    iof_info_t info = flag(IOF_IOF_PUSH_STDIN);
    iof_proc_t rank;
    assert(iof_server_init(NULL, NULL, 0) == IOF_SUCCESS);
    assert(spawn(job, "cat", NULL, 0) == IOF_SUCCESS);
    assert(iof_Load_procid(&rank, job, 0) == IOF_SUCCESS);
    int status = iof_IOF_push(&rank, 1, NULL, &info, 1, NULL, NULL);
    printf("push %d %s\n", status, iof_last_error());
    assert(iof_server_signal(job, 9) == IOF_SUCCESS);
    assert(iof_server_wait(job, NULL) == IOF_SUCCESS);
    assert(iof_server_finalize() == IOF_SUCCESS);
}

/* Progresses the library itself, which knows the process of each line before the job has ended. */
static void external_progress(void)
{
    iof_info_t infos[] = {flag(IOF_EXTERNAL_PROGRESS), flag(IOF_IOF_TAG_DETAILED_OUTPUT)};
    assert(iof_server_init(NULL, infos, 2) == IOF_SUCCESS);
    pull(job, NULL, 0, NULL);
    assert(spawn(job, "echo $$", NULL, 0) == IOF_SUCCESS);
    assert(iof_server_wait(job, NULL) == IOF_SUCCESS);
    assert(iof_server_finalize() == IOF_SUCCESS);
}

static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;
static iof_info_cbfunc_t asked;
static void *asked_data;

static iof_status_t query(iof_proc_t *proc, iof_query_t *queries, size_t nqueries, iof_info_cbfunc_t cbfunc,
                          void *cbdata)
{
    (void)proc, (void)queries, (void)nqueries;
    pthread_mutex_lock(&asking);
    asked = cbfunc;
    asked_data = cbdata;
    pthread_mutex_unlock(&asking);
    return IOF_SUCCESS;
}

/* Answers a query of the library, if there is one. */
static bool answer(void)
{
    pthread_mutex_lock(&asking);
    iof_info_cbfunc_t cbfunc = asked;
    asked = NULL;
    pthread_mutex_unlock(&asking);
    if (cbfunc != NULL) {
        cbfunc(IOF_ERR_NOT_FOUND, NULL, 0, asked_data, NULL, NULL);
    }
    return cbfunc != NULL;
}

static volatile size_t received;

static void output(size_t handler, iof_iof_channel_t channel, iof_proc_t *source, iof_byte_object_t *payload,
                   iof_info_t info[], size_t ninfo)
{
    (void)handler, (void)channel, (void)source, (void)info, (void)ninfo;
    received += payload->size;
}

/* Answers the query for a tag in the loop that progresses the library, after another registration
 * has received output. */
static void answer_in_loop(void)
{
    iof_info_t infos[] = {flag(IOF_EXTERNAL_PROGRESS), flag(IOF_IOF_TAG_DETAILED_OUTPUT),
                          text(IOF_HOST_QUERIES, IOF_QUERY_PROC_TABLE)};
    iof_server_module_t module = {.query = query};
    assert(iof_server_init(&module, infos, 3) == IOF_SUCCESS);
    pull(job, NULL, 0, NULL);
    pull("other", NULL, 0, output);
    assert(spawn(job, "echo tagged; sleep 0.1; echo last", NULL, 0) == IOF_SUCCESS);
    bool started = false, answered = false;
    while (!answered) {
        struct pollfd fd = {.fd = iof_progress_fd(), .events = POLLIN};
        poll(&fd, 1, 10);
        iof_Progress();
        pthread_mutex_lock(&asking);
        bool waits = asked != NULL;
        pthread_mutex_unlock(&asking);
        if (waits && !started) {
            assert(spawn("other", "echo other", NULL, 0) == IOF_SUCCESS);
            started = true;
        }
        answered = received > 0 && answer();
    }
    assert(iof_server_wait(job, NULL) == IOF_SUCCESS);
    assert(iof_server_wait("other", NULL) == IOF_SUCCESS);
    assert(iof_server_finalize() == IOF_SUCCESS);
}

/* Flushes while output waits for its tag, with a thread of the library or without. */
static void flush_in_time(void)
{
    iof_info_t infos[] = {flag(IOF_IOF_TAG_DETAILED_OUTPUT), text(IOF_HOST_QUERIES, IOF_QUERY_PROC_TABLE),
                          flag(IOF_EXTERNAL_PROGRESS)};
    iof_server_module_t module = {.query = query};
    iof_proc_t all;
    assert(iof_Load_procid(&all, job, IOF_RANK_WILDCARD) == IOF_SUCCESS);
    for (size_t progresses = 0; progresses < 2; progresses++) {
        assert(iof_server_init(&module, infos, 2 + progresses) == IOF_SUCCESS);
        pull(job, NULL, 0, NULL);
        assert(spawn(job, "echo x; exec sleep 1000", NULL, 0) == IOF_SUCCESS);
        for (bool waits = false; !waits; poll(NULL, 0, 1)) {
            iof_Progress();
            pthread_mutex_lock(&asking);
            waits = asked != NULL;
            pthread_mutex_unlock(&asking);
        }
        assert(iof_server_flush(&all, 100) == IOF_ERR_TIMEOUT);
        assert(answer());
        assert(iof_server_flush(&all, -1) == IOF_SUCCESS);
        printf("flushed\n");
        fflush(stdout);
        assert(iof_server_signal(job, 9) == IOF_SUCCESS && iof_server_wait(job, NULL) == IOF_SUCCESS);
        assert(iof_server_finalize() == IOF_SUCCESS);
    }
}

static size_t calls;

static void slow_output(size_t handler, iof_iof_channel_t channel, iof_proc_t *source, iof_byte_object_t *payload,
                        iof_info_t info[], size_t ninfo)
{
    (void)handler, (void)channel, (void)source, (void)payload, (void)info, (void)ninfo;
    calls++;
    poll(NULL, 0, 200);
}

/* Flushes while callbacks that take longer than its time limit are due. */
static void flush_slow_callbacks(void)
{
    iof_info_t infos[] = {flag(IOF_EXTERNAL_PROGRESS)};
    iof_proc_t all;
    int written[2];
    char script[128], byte;
    assert(iof_Load_procid(&all, job, IOF_RANK_WILDCARD) == IOF_SUCCESS && pipe(written) == 0);
    assert(iof_server_init(NULL, infos, 1) == IOF_SUCCESS);
    for (int registration = 0; registration < 8; registration++) {
        pull(job, NULL, 0, slow_output);
    }
    snprintf(script, sizeof script, "echo x; echo > /proc/%d/fd/%d; exec sleep 1000", (int)getpid(), written[1]);
    assert(spawn(job, script, NULL, 0) == IOF_SUCCESS);
    assert(read(written[0], &byte, 1) == 1);
    assert(iof_server_flush(&all, 100) == IOF_ERR_TIMEOUT && calls <= 1);
    assert(iof_server_flush(&all, -1) == IOF_SUCCESS && calls == 8);
    assert(iof_server_signal(job, 9) == IOF_SUCCESS && iof_server_wait(job, NULL) == IOF_SUCCESS);
    assert(iof_server_finalize() == IOF_SUCCESS);
}

static pthread_barrier_t both;

/* Starts jobs whose names another thread wants, too. */
static void *race(void *wins)
{
    iof_info_t info = flag(IOF_IOF_TAG_OUTPUT);
    for (int i = 0; i < RACES; i++) {
        char name[16];
        snprintf(name, sizeof name, "job%d", i);
        pthread_barrier_wait(&both);
        iof_status_t status = spawn(name, "sleep 0.02; echo x", &info, 1);
        assert(status == IOF_SUCCESS || status == IOF_ERR_EXISTS);
        if (status == IOF_SUCCESS) {
            assert(iof_server_wait(name, NULL) == IOF_SUCCESS);
            __atomic_add_fetch((int *)wins, 1, __ATOMIC_RELAXED);
        }
    }
    return NULL;
}

static void same_names(void)
{
    pthread_t other;
    int wins = 0;
    assert(iof_server_init(NULL, NULL, 0) == IOF_SUCCESS);
    for (int i = 0; i < RACES; i++) {
        char name[16];
        snprintf(name, sizeof name, "job%d", i);
        pull(name, NULL, 0, NULL);
    }
    assert(pthread_barrier_init(&both, NULL, 2) == 0);
    assert(pthread_create(&other, NULL, race, &wins) == 0);
    race(&wins);
    assert(pthread_join(other, NULL) == 0);
    assert(wins == RACES);
    assert(iof_server_finalize() == IOF_SUCCESS);
}

/* Runs two jobs of one name, whose output a registration writes to a file. Its name is relative to
 * the directory in which the program registers. */
static void one_after_the_other(void)
{
    iof_info_t file = text(IOF_IOF_OUTPUT_TO_FILE, "file");
    char *scripts[] = {"echo first", "echo second"};
    assert(iof_server_init(NULL, NULL, 0) == IOF_SUCCESS);
    pull(job, &file, 1, NULL);
    assert(chdir("/") == 0);
    for (int i = 0; i < 2; i++) {
        assert(spawn(job, scripts[i], NULL, 0) == IOF_SUCCESS);
        assert(iof_server_wait(job, NULL) == IOF_SUCCESS);
        assert(iof_server_forget(job) == IOF_SUCCESS);
    }
    assert(iof_server_finalize() == IOF_SUCCESS);
}

/* Writes output to a FIFO that no process reads, and to a callback. */
static void unread_fifo(void)
{
    iof_info_t fifo[] = {text(IOF_IOF_OUTPUT_TO_FILE, "fifo"), flag(IOF_IOF_FILE_PATTERN)};
    assert(iof_server_init(NULL, NULL, 0) == IOF_SUCCESS);
    iof_status_t status = spawn(job, "echo x", fifo, 2);
    printf("spawn %d %s\n", status, iof_last_error());
    pull(job, fifo, 2, NULL);
    pull(job, NULL, 0, output);
    assert(spawn(job, "echo x", NULL, 0) == IOF_SUCCESS);
    assert(iof_server_wait(job, NULL) == IOF_SUCCESS);
    assert(iof_server_finalize() == IOF_SUCCESS);
    printf("received %zu\n", received);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"closed", closed},
        {"push-stdin", push_stdin},
        {"external-progress", external_progress},
        {"answer-in-loop", answer_in_loop},
        {"flush-in-time", flush_in_time},
        {"flush-slow-callbacks", flush_slow_callbacks},
        {"same-names", same_names},
        {"one-after-the-other", one_after_the_other},
        {"unread-fifo", unread_fifo},
    };
    assert(argc == 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!strcmp(argv[1], cases[i].name)) {
            cases[i].run();
            return 0;
        }
    }
    abort();
}
