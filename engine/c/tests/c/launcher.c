/* A launcher with all host callbacks. It takes its commands from lines on stdin, and spawns
 * ranks. */
#define _GNU_SOURCE
#include <assert.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iof.h>

#include "check.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t bytes, ends, lost, pulls, stops, tools, logs, deliveries;
static char pushed[256];

static void output(size_t handler, iof_iof_channel_t channel, iof_proc_t *source, iof_byte_object_t *payload,
                   iof_info_t info[], size_t ninfo)
{
    assert(handler > 0 && channel && source && payload && ninfo > 0);
    pthread_mutex_lock(&lock);
    bytes += payload->size;
    for (size_t i = 0; i < ninfo; i++) {
        if (!strcmp(info[i].key, IOF_IOF_COMPLETE)) {
            ends++;
        }
        if (!strcmp(info[i].key, IOF_LOST)) {
            lost += info[i].value.data.uint64;
        }
    }
    pthread_mutex_unlock(&lock);
}

static iof_status_t pull(const iof_proc_t procs[], size_t nprocs, const iof_info_t directives[], size_t ndirs,
                         iof_iof_channel_t channels, iof_op_cbfunc_t cbfunc, void *cbdata)
{
    assert(procs && nprocs > 0 && channels && cbfunc);
    for (size_t i = 0; i < ndirs; i++) {
        if (!strcmp(directives[i].key, IOF_IOF_STOP)) {
            stops++;
            return IOF_OPERATION_SUCCEEDED;
        }
    }
    if (!strcmp(procs[0].nspace, "secret")) {
        return IOF_ERR_NO_PERMISSIONS;
    }
    pulls++;
    cbfunc(IOF_SUCCESS, cbdata);
    cbfunc(IOF_SUCCESS, cbdata); /* A second answer has no effect. */
    return IOF_SUCCESS;
}

static iof_proc_t paused;
static int resumed, ended;

static void resumption_done(iof_status_t status, void *cbdata)
{
    assert(status == IOF_SUCCESS && cbdata == &paused);
}

static void *resume(void *arg)
{
    (void)arg;
    poll(NULL, 0, 100);
    /* A wildcard means all tools, whose pause the resumption of one of them does not end. */
    iof_proc_t any = paused, none = {.nspace = ""};
    any.rank = IOF_RANK_WILDCARD;
    CHECK(iof_server_IOF_flow_control(&any, IOF_FWD_STDIN_CHANNEL, true, NULL, 0, NULL, NULL));
    CHECK(iof_server_IOF_flow_control(&paused, IOF_FWD_STDIN_CHANNEL, false, NULL, 0, resumption_done, &paused));
    __atomic_store_n(&resumed, 1, __ATOMIC_SEQ_CST);
    assert(iof_server_IOF_flow_control(NULL, IOF_FWD_STDOUT_CHANNEL, false, NULL, 0, NULL, NULL) ==
           IOF_ERR_NOT_SUPPORTED);
    /* A resumption before the answer to the bytes has no effect. */
    while (!__atomic_load_n(&ended, __ATOMIC_SEQ_CST) &&
           iof_server_IOF_flow_control(&none, IOF_FWD_STDIN_CHANNEL, false, NULL, 0, NULL, NULL) == IOF_SUCCESS) {
        poll(NULL, 0, 10);
    }
    return NULL;
}

/* Takes bytes with XOFF. The end must follow only after the resumption. */
static iof_status_t push_stdin(const iof_proc_t *source, const iof_proc_t targets[], size_t ntargets,
                               const iof_info_t directives[], size_t ndirs, const iof_byte_object_t *bo,
                               iof_op_cbfunc_t cbfunc, void *cbdata)
{
    (void)directives, (void)ndirs, (void)cbfunc, (void)cbdata;
    assert(source && targets && ntargets == 1 && bo);
    strncat(pushed, bo->bytes ? bo->bytes : "", bo->size);
    if (bo->size == 0) {
        assert(__atomic_load_n(&resumed, __ATOMIC_SEQ_CST));
        __atomic_store_n(&ended, 1, __ATOMIC_SEQ_CST);
        strcat(pushed, "$");
        return IOF_ERR_IOF_COMPLETE;
    }
    pthread_t thread;
    assert(!strncmp(source->nspace, "iof-tool-", 9) && source->rank == 0);
    paused = *source;
    assert(!pthread_create(&thread, NULL, resume, NULL) && !pthread_detach(thread));
    return IOF_ERR_IOF_XOFF;
}

static iof_status_t query(iof_proc_t *proct, iof_query_t *queries, size_t nqueries, iof_info_cbfunc_t cbfunc,
                          void *cbdata)
{
    (void)proct;
    assert(nqueries > 0 && queries[0].keys);
    if (strcmp(queries[0].keys[0], IOF_QUERY_QUEUE_LIST)) {
        return IOF_ERR_NOT_FOUND;
    }
    iof_info_t info;
    CHECK(iof_Info_load(&info, IOF_QUERY_QUEUE_LIST, "short,long", IOF_STRING));
    cbfunc(IOF_SUCCESS, &info, 1, cbdata, NULL, NULL);
    iof_Value_destruct(&info.value);
    return IOF_SUCCESS;
}

static void tool_connected(iof_info_t *info, size_t ninfo, iof_tool_connection_cbfunc_t cbfunc, void *cbdata)
{
    assert(ninfo == 3 && !strcmp(info[0].key, IOF_USERID) && info[0].value.data.uint32 == geteuid());
    assert(!strcmp(info[1].key, IOF_GRPID) && info[1].value.data.uint32 == getegid());
    assert(!strcmp(info[2].key, IOF_PROC_PID) && info[2].value.data.pid > 0);
    /* Calls that would wait for the engine are refused. */
    assert(iof_server_finalize() == IOF_ERR_WOULD_BLOCK && iof_server_wait("job", NULL) == IOF_ERR_WOULD_BLOCK);
    tools++;
    cbfunc(IOF_SUCCESS, NULL, cbdata);
}

static void logged(const iof_proc_t *client, const iof_info_t data[], size_t ndata, const iof_info_t directives[],
                   size_t ndirs, iof_op_cbfunc_t cbfunc, void *cbdata)
{
    (void)client, (void)directives, (void)ndirs;
    assert(ndata == 1 && !strcmp(data[0].value.data.string, "half done"));
    logs++;
    cbfunc(IOF_SUCCESS, cbdata);
}

static void delivered(iof_status_t status, void *cbdata)
{
    assert(status == IOF_SUCCESS && cbdata == &deliveries);
    __atomic_add_fetch(&deliveries, 1, __ATOMIC_SEQ_CST);
}

/* Starts ranks without the library, as many launchers do, and hands over their pipes. If `reap`,
 * the launcher waits for the ranks and reports their exits; otherwise the library does. */
static void adopt(const char *nspace, const char *script, int count, pid_t *pids, bool reap)
{
    iof_adopted_t ranks[8];
    assert(count <= 8);
    for (int rank = 0; rank < count; rank++) {
        int in[2], out[2], err[2];
        assert(!pipe2(in, O_CLOEXEC) && !pipe2(out, O_CLOEXEC) && !pipe2(err, O_CLOEXEC));
        pids[rank] = fork();
        assert(pids[rank] >= 0);
        if (pids[rank] == 0) {
            dup2(in[0], 0);
            dup2(out[1], 1);
            dup2(err[1], 2);
            execlp("sh", "sh", "-c", script, (char *)NULL);
            _exit(127);
        }
        close(in[0]);
        close(out[1]);
        close(err[1]);
        ranks[rank] = (iof_adopted_t){.rank = rank, .executable = "sh", .stdin_fd = in[1], .stdout_fd = out[0],
                                      .stderr_fd = err[0], .stddiag_fd = -1, .pidfd = -1,
                                      .pid = reap ? 0 : pids[rank]};
    }
    CHECK(iof_server_adopt(nspace, ranks, count, NULL, 0));
}

struct job {
    const char *nspace;
    int count;
    pid_t pids[8];
};

/* Waits for the ranks of a job and reports their exits. */
static void *report(void *arg)
{
    struct job *job = arg;
    for (int rank = 0; rank < job->count; rank++) {
        iof_proc_t proc;
        int status;
        assert(waitpid(job->pids[rank], &status, 0) == job->pids[rank]);
        CHECK(iof_Load_procid(&proc, job->nspace, rank));
        CHECK(iof_server_report_exit(&proc, status));
        assert(iof_server_report_exit(&proc, status) == IOF_ERR_NOT_FOUND);
    }
    return NULL;
}

static void adopt_one(bool reap)
{
    struct job job = {.nspace = "adopted", .count = 1};
    iof_proc_t all;
    int exit_code = 0;
    CHECK(iof_Load_procid(&all, "adopted", IOF_RANK_WILDCARD));
    CHECK(iof_IOF_pull(&all, 1, NULL, 0, IOF_FWD_STDOUT_CHANNEL, output, NULL, NULL));
    adopt("adopted", "echo adopted; exit 7", 1, job.pids, reap);
    if (reap) {
        report(&job);
    }
    CHECK(iof_server_wait("adopted", &exit_code));
    assert(exit_code == 7);
    /* The end of the stream comes after its bytes. */
    for (bool ended = false; !ended; poll(NULL, 0, 1)) {
        pthread_mutex_lock(&lock);
        assert(bytes == 8);
        ended = ends == 1;
        pthread_mutex_unlock(&lock);
    }
    bytes = ends = 0;
    CHECK(iof_server_forget("adopted"));
    assert(iof_server_forget("adopted") == IOF_ERR_NOT_FOUND);
}

/* The lines of a registration, each behind its offset and before a bar. */
static char lines[256];

static void line(size_t handler, iof_iof_channel_t channel, iof_proc_t *source, iof_byte_object_t *payload,
                 iof_info_t infos[], size_t ninfo)
{
    (void)handler, (void)channel, (void)source;
    pthread_mutex_lock(&lock);
    size_t used = strlen(lines);
    assert(ninfo > 0 && !strcmp(infos[0].key, IOF_OFFSET));
    snprintf(lines + used, sizeof lines - used, "%d %.*s|", (int)infos[0].value.data.uint64,
             payload ? (int)payload->size : 0, payload ? payload->bytes : "");
    pthread_mutex_unlock(&lock);
}

/* Each call of a callback with IOF_LINES has one line, however it was written. */
static void whole_lines(void)
{
    char *argv[] = {"sh", "-c", "printf one; sleep .2; echo ' two'; printf 'three\nfour'", NULL};
    iof_app_t app = {.cmd = "sh", .argv = argv, .maxprocs = 1};
    iof_info_t whole, name;
    iof_proc_t all;
    iof_status_t handler;
    int exit_code;
    CHECK(iof_Load_procid(&all, "lines", IOF_RANK_WILDCARD));
    CHECK(iof_Info_load(&whole, IOF_LINES, NULL, IOF_BOOL));
    CHECK(iof_Info_load(&name, IOF_NSPACE, "lines", IOF_STRING));
    handler = iof_IOF_pull(&all, 1, &whole, 1, IOF_FWD_STDOUT_CHANNEL, line, NULL, NULL);
    assert(handler > 0);
    CHECK(iof_server_spawn(&name, 1, &app, 1, NULL));
    CHECK(iof_server_wait("lines", &exit_code));
    /* What was read before is delivered before the function returns. */
    CHECK(iof_IOF_deregister((size_t)handler, NULL, 0, NULL, NULL));
    if (strcmp(lines, "0 one two\n|8 three\n|14 four|18 |")) {
        fprintf(stderr, "lines: %s\n", lines);
        abort();
    }
    iof_Value_destruct(&name.value);
    CHECK(iof_server_forget("lines"));
}

/* Starts two ranks of the job `name` with an info. Returns the exit code of the job, and in `codes` those of its ranks. */
static int run_limited(const char *name, const iof_info_t *limit, char *script, int codes[2])
{
    char *argv[] = {"sh", "-c", script, NULL};
    char *keys[] = {IOF_QUERY_PROC_TABLE, NULL};
    iof_app_t app = {.cmd = "sh", .argv = argv, .maxprocs = 2};
    iof_info_t infos[2] = {[1] = *limit}, *answer;
    iof_query_t query = {.keys = keys, .qualifiers = infos, .nqual = 1};
    size_t count;
    int exit_code = -1;
    CHECK(iof_Info_load(&infos[0], IOF_NSPACE, name, IOF_STRING));
    CHECK(iof_server_spawn(infos, 2, &app, 1, NULL));
    CHECK(iof_server_wait(name, &exit_code));
    CHECK(iof_Query_info(&query, 1, &answer, &count));
    assert(count == 1 && answer->value.data.darray->size == 2);
    for (int rank = 0; rank < 2; rank++) {
        codes[rank] = ((iof_proc_info_t *)answer->value.data.darray->array)[rank].exit_code;
    }
    IOF_INFO_FREE(answer, count);
    iof_Value_destruct(&infos[0].value);
    CHECK(iof_server_forget(name));
    return exit_code;
}

/* A limit of its time and the failure of a rank end a job, and each rank has its exit code. */
static void end_early(void)
{
    iof_info_t limit;
    int seconds = 1, codes[2];
    CHECK(iof_Info_load(&limit, IOF_JOB_TIMEOUT, &seconds, IOF_INT));
    assert(run_limited("limited", &limit, "[ $IOF_RANK = 1 ] || exec sleep 1000", codes) == 124);
    assert(codes[0] == 128 + SIGTERM && codes[1] == 0);
    CHECK(iof_Info_load(&limit, IOF_ABORT_NON_ZERO_TERM, NULL, IOF_BOOL));
    assert(run_limited("failing", &limit, "[ $IOF_RANK = 0 ] || exit 3; exec sleep 1000", codes) == 3);
    assert(codes[0] == 128 + SIGTERM && codes[1] == 3);
}

/* Delivers output of a rank on another node. Tools push to the stdin of this rank. */
static void deliver(void)
{
    iof_proc_t far;
    iof_byte_object_t bo = {"far away\n", 9};
    iof_info_t end;
    CHECK(iof_Load_procid(&far, "far", 3));
    CHECK(iof_Info_load(&end, IOF_IOF_COMPLETE, NULL, IOF_BOOL));
    CHECK(iof_server_IOF_deliver(&far, IOF_FWD_STDOUT_CHANNEL, &bo, NULL, 0, delivered, &deliveries));
    CHECK(iof_server_IOF_deliver(&far, IOF_FWD_STDOUT_CHANNEL, NULL, &end, 1, delivered, &deliveries));
    assert(iof_server_IOF_deliver(&far, IOF_FWD_STDOUT_CHANNEL, &bo, NULL, 0, NULL, NULL) == IOF_ERR_IOF_COMPLETE);
    assert(iof_server_IOF_deliver(&far, IOF_FWD_STDIN_CHANNEL, &bo, NULL, 0, NULL, NULL) == IOF_ERR_BAD_PARAM);
}

int main(void)
{
    iof_server_module_t module = {.query = query, .tool_connected = tool_connected, .log = logged,
                                  .iof_pull = pull, .push_stdin = push_stdin};
    iof_info_t infos[2];
    char line[64];
    const char *backend = getenv("IOF_TEST_BACKEND");
    const char *script = "seq 1000; echo oops >&2; read line; echo \"got $line\"";
    /* Set where pidfds are not available, as under valgrind. */
    bool reap = getenv("IOF_TEST_ADOPT");
    struct job job = {.nspace = "job"};
    pthread_t reporter;
    CHECK(iof_Info_load(&infos[0], IOF_DROP_NONE, NULL, IOF_BOOL));
    CHECK(iof_Info_load(&infos[1], IOF_BACKEND, backend, IOF_STRING));
    assert(!iof_Initialized());
    CHECK(iof_server_init(&module, infos, backend ? 2 : 1));
    iof_Value_destruct(&infos[1].value);
    assert(iof_Initialized() && iof_server_init(NULL, NULL, 0) == IOF_ERR_EXISTS);
    assert(iof_tool_init(NULL, NULL, 0) == IOF_ERR_INIT);
    adopt_one(reap);
    if (!reap) {
        end_early();
        whole_lines();
    }
    deliver();
    printf("uri %s\n", iof_server_uri());
    fflush(stdout);

    while (fgets(line, sizeof line, stdin)) {
        bool stay = !strcmp(line, "stay\n");
        if (stay || !strncmp(line, "spawn ", 6)) {
            char *argv[] = {"sh", "-c", (char *)(stay ? "cat; while echo; do sleep 0.1; done" : script), NULL};
            char *env[] = {"COLOUR=blue", NULL};
            iof_app_t app = {.cmd = "sh", .argv = argv, .env = env, .maxprocs = job.count = stay ? 1 : atoi(line + 6)};
            iof_proc_t all;
            iof_info_t info[2];
            char nspace[IOF_MAX_NSLEN + 1];
            iof_rank_t any = IOF_RANK_WILDCARD;
            CHECK(iof_Info_load(&info[0], IOF_NSPACE, "job", IOF_STRING));
            CHECK(iof_Info_load(&info[1], IOF_STDIN_TGT, &any, IOF_PROC_RANK));
            CHECK(iof_Load_procid(&all, "job", IOF_RANK_WILDCARD));
            CHECK(iof_IOF_pull(&all, 1, NULL, 0, IOF_FWD_STDOUT_CHANNEL | IOF_FWD_STDERR_CHANNEL, output, NULL, NULL));
            if (reap) {
                adopt("job", script, job.count, job.pids, reap);
                assert(!pthread_create(&reporter, NULL, report, &job));
            } else {
                CHECK(iof_server_spawn(info, 2, &app, 1, nspace));
                assert(!strcmp(nspace, "job") && iof_server_spawn(info, 2, &app, 1, NULL) == IOF_ERR_EXISTS);
            }
            iof_Value_destruct(&info[0].value);
            printf("spawned\n");
        } else if (!strcmp(line, "wait\n")) {
            int exit_code = -1;
            if (reap) {
                assert(!pthread_join(reporter, NULL));
            }
            CHECK(iof_server_wait("job", &exit_code));
            CHECK(iof_server_end_job("far", 0));
            assert(iof_server_end_job("far", 0) == IOF_ERR_NOT_FOUND);
            pthread_mutex_lock(&lock);
            printf("exit %d bytes %zu lost %zu pulls %zu tools %zu logs %zu pushed %s\n", exit_code, bytes, lost, pulls,
                   tools, logs, pushed);
            pthread_mutex_unlock(&lock);
        }
        fflush(stdout);
    }
    CHECK(iof_server_finalize());
    assert(!iof_Initialized() && iof_server_finalize() == IOF_ERR_INIT && !iof_server_uri());
    assert(__atomic_load_n(&deliveries, __ATOMIC_SEQ_CST) == 2);
    printf("ends %zu stops %zu\n", ends, stops);
    return 0;
}
