/* Programs in unusual situations: they finalize at exit or while other threads wait, fork, and
 * call the library from within callbacks. The first argument selects the scenario. Each ends
 * only if nothing hangs. */
#define _GNU_SOURCE
#include <assert.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iof.h>

#include "check.h"

static _Atomic int reached, answered;
static iof_proc_t all, rank0;

/* Waits until a counter reaches `count`. */
static void wait_for(_Atomic int *counter, int count)
{
    while (*counter < count) {
        poll(NULL, 0, 1);
    }
}

static void op(iof_status_t status, void *cbdata)
{
    *(iof_status_t *)cbdata = status;
    answered++;
}

static void output(size_t id, iof_iof_channel_t channel, iof_proc_t *source, iof_byte_object_t *payload,
                   iof_info_t *infos, size_t ninfos)
{
    (void)id, (void)channel, (void)source, (void)infos, (void)ninfos;
    if (payload->size > 0) {
        reached++;
    }
}

static void spawn(const char *script, int with_stdin)
{
    char *argv[] = {"sh", "-c", (char *)script, NULL};
    iof_app_t app = {.cmd = "sh", .argv = argv, .maxprocs = 1};
    iof_info_t infos[2];
    assert(iof_Info_load(&infos[0], IOF_NSPACE, "job", IOF_STRING) == IOF_SUCCESS);
    assert(iof_Info_load(&infos[1], IOF_STDIN_TGT, &rank0.rank, IOF_PROC_RANK) == IOF_SUCCESS);
    assert(iof_server_spawn(infos, with_stdin ? 2 : 1, &app, 1, NULL) == IOF_SUCCESS);
    iof_Value_destruct(&infos[0].value);
}

/* Pushes stdin, which stays open, to a job, and stops: once by the directive itself, once by its
 * end. */
static void stdin_that_is_stopped(void)
{
    static const char *const stops[] = {IOF_IOF_PUSH_STDIN, IOF_IOF_COMPLETE};
    iof_byte_object_t empty = {NULL, 0}, bytes = {"x", 1};
    iof_info_t start, stop;
    iof_status_t status;
    int input[2], code;
    bool no = false;
    assert(pipe2(input, O_CLOEXEC) == 0 && dup2(input[0], 0) == 0);
    assert(iof_IOF_pull(&all, 1, NULL, 0, IOF_FWD_STDOUT_CHANNEL, output, NULL, NULL) > 0);
    for (int round = 0; round < 2; round++) {
        reached = answered = 0;
        spawn("cat", 1);
        /* RFC0025 gives the directive a process. */
        assert(iof_Info_load(&start, IOF_IOF_PUSH_STDIN, &rank0, IOF_PROC) == IOF_SUCCESS);
        /* It is refused with the status with which bytes are. */
        iof_proc_t unknown = rank0;
        unknown.rank = 1;
        assert(iof_IOF_push(&unknown, 1, NULL, &start, 1, NULL, NULL) == IOF_ERR_NOT_FOUND && *iof_last_error());
        assert(iof_IOF_push(&rank0, round, &bytes, &start, 1, NULL, NULL) == IOF_ERR_BAD_PARAM && *iof_last_error());
        iof_byte_object_t *nothing = round == 0 ? NULL : &empty;
        assert(iof_IOF_push(&rank0, round, nothing, &start, 1, NULL, NULL) == IOF_SUCCESS);
        /* Two pushes would divide the bytes of stdin. */
        assert(iof_IOF_push(&rank0, round, NULL, &start, 1, NULL, NULL) == IOF_ERR_RESOURCE_BUSY && *iof_last_error());
        iof_Value_destruct(&start.value);
        assert(write(input[1], "typed\n", 6) == 6);
        wait_for(&reached, 1);
        assert(iof_Info_load(&stop, stops[round], round == 0 ? &no : NULL, IOF_BOOL) == IOF_SUCCESS);
        assert(iof_IOF_push(&rank0, 1, nothing, &stop, 1, op, &status) == IOF_SUCCESS);
        wait_for(&answered, 1);
        assert(status == IOF_SUCCESS);
        /* cat ends at the end of its stdin. */
        assert(iof_server_wait("job", &code) == IOF_SUCCESS && code == 0);
        assert(iof_server_forget("job") == IOF_SUCCESS);
    }
    /* What is written now is not read by the library. */
    assert(write(input[1], "x", 1) == 1 && read(0, &code, 1) == 1);
    /* Nothing is left to stop. */
    assert(iof_Info_load(&stop, IOF_IOF_PUSH_STDIN, &no, IOF_BOOL) == IOF_SUCCESS);
    assert(iof_IOF_push(&rank0, 1, NULL, &stop, 1, NULL, NULL) == IOF_SUCCESS);
    /* Without a target, and to a stdin that is closed. */
    assert(iof_Info_load(&start, IOF_IOF_PUSH_STDIN, NULL, IOF_BOOL) == IOF_SUCCESS);
    assert(iof_Info_load(&stop, IOF_IOF_COMPLETE, NULL, IOF_BOOL) == IOF_SUCCESS);
    assert(iof_IOF_push(NULL, 0, NULL, &start, 1, NULL, NULL) == IOF_ERR_BAD_PARAM);
    spawn("exec sleep 1000", 1);
    assert(iof_IOF_push(&rank0, 1, &bytes, &stop, 1, NULL, NULL) == IOF_SUCCESS);
    assert(iof_IOF_push(&rank0, 1, NULL, &start, 1, NULL, NULL) == IOF_ERR_IOF_COMPLETE);
    assert(iof_server_signal("job", SIGKILL) == IOF_SUCCESS && iof_server_wait("job", NULL) == IOF_SUCCESS);
}

/* Pushes stdin, which stays open, to one job after the other. Each push ends with its target. */
static void stdin_of_jobs_that_end(void)
{
    iof_info_t start;
    int input[2];
    assert(pipe2(input, O_CLOEXEC) == 0 && dup2(input[0], 0) == 0);
    assert(iof_Info_load(&start, IOF_IOF_PUSH_STDIN, NULL, IOF_BOOL) == IOF_SUCCESS);
    for (int job = 0; job < 20; job++) {
        spawn("read line", 1);
        assert(iof_IOF_push(&rank0, 1, NULL, &start, 1, NULL, NULL) == IOF_SUCCESS);
        assert(write(input[1], "typed\n", 6) == 6);
        assert(iof_server_wait("job", NULL) == IOF_SUCCESS && iof_server_forget("job") == IOF_SUCCESS);
    }
}

/* Pushes a stdin that cannot be read: the rank sees the end of its stdin. */
static void stdin_that_fails(void)
{
    iof_info_t start;
    int directory = open("/", O_RDONLY | O_CLOEXEC), code;
    assert(directory > 0 && dup2(directory, 0) == 0);
    assert(iof_Info_load(&start, IOF_IOF_PUSH_STDIN, NULL, IOF_BOOL) == IOF_SUCCESS);
    spawn("cat", 1);
    assert(iof_IOF_push(&rank0, 1, NULL, &start, 1, NULL, NULL) == IOF_SUCCESS);
    assert(iof_server_wait("job", &code) == IOF_SUCCESS && code == 0);
}

static void at_exit(void)
{
    if (iof_server_finalize() != IOF_SUCCESS || iof_server_finalize() != IOF_ERR_INIT || !iof_last_error()) {
        _exit(1);
    }
}

static void forked(void)
{
    iof_info_t *results;
    size_t nresults;
    char *keys[] = {IOF_QUERY_NAMESPACES, NULL};
    iof_query_t query = {.keys = keys};
    pid_t child = fork();
    assert(child >= 0);
    if (child == 0) {
        iof_Progress();
        _exit(!(iof_Initialized() == 0 && iof_Query_info(&query, 1, &results, &nresults) == IOF_ERR_INIT &&
                *iof_last_error() && iof_server_finalize() == IOF_ERR_INIT &&
                iof_tool_init(NULL, NULL, 0) == IOF_ERR_INIT && iof_server_init(NULL, NULL, 0) == IOF_ERR_INIT &&
                iof_server_uri() == NULL && iof_progress_fd() < 0));
    }
    ends_well(child);
    assert(iof_Query_info(&query, 1, &results, &nresults) == IOF_SUCCESS);
    iof_Info_free(results, nresults);
}

/* A thread that pushes more than a rank reads, until the library is finalized. */
static void *pushes(void *arg)
{
    static char bytes[4 << 20];
    iof_byte_object_t bo = {bytes, sizeof bytes};
    (void)arg;
    assert(iof_IOF_push(&rank0, 1, &bo, NULL, 0, NULL, NULL) == IOF_ERR_UNREACH);
    return NULL;
}

/* One thread waits for its push and thereby progresses the library. The other queries, and
 * finalizes. */
static void tool_with_threads(void)
{
    pthread_t thread;
    iof_info_t own_loop, *results;
    size_t nresults;
    char *keys[] = {IOF_QUERY_NAMESPACES, NULL};
    iof_query_t query = {.keys = keys};
    assert(iof_Info_load(&own_loop, IOF_EXTERNAL_PROGRESS, NULL, IOF_BOOL) == IOF_SUCCESS);
    assert(iof_tool_init(NULL, &own_loop, 1) == IOF_SUCCESS);
    assert(iof_IOF_pull(&all, 1, NULL, 0, IOF_FWD_STDOUT_CHANNEL, output, NULL, NULL) > 0);
    assert(pthread_create(&thread, NULL, pushes, NULL) == 0);
    wait_for(&reached, 1); /* The rank has read some of the push. */
    iof_Progress();
    iof_progress_timeout();
    assert(iof_Query_info(&query, 1, &results, &nresults) == IOF_SUCCESS);
    iof_Info_free(results, nresults);
    assert(iof_tool_finalize() == IOF_SUCCESS);
    assert(pthread_join(thread, NULL) == 0);
}

static void tool_with_query(void)
{
    iof_info_t *results;
    size_t nresults;
    char *keys[] = {"site.key", NULL};
    iof_query_t query = {.keys = keys};
    assert(iof_tool_init(NULL, NULL, 0) == IOF_SUCCESS);
    iof_status_t status = iof_Query_info(&query, 1, &results, &nresults);
    assert(status == (getenv("ENDS") ? IOF_ERR_UNREACH : IOF_SUCCESS));
    if (status == IOF_SUCCESS) {
        iof_Info_free(results, nresults);
    }
    assert(iof_tool_finalize() == IOF_SUCCESS);
}

static iof_info_cbfunc_t answer;
static void *answer_data;
static iof_proc_t *asker;
static _Atomic int asked, goes_on;

/* Takes a query, which is answered later on another thread, as launchers do. */
static iof_status_t query_later(iof_proc_t *proc, iof_query_t *queries, size_t nqueries, iof_info_cbfunc_t cbfunc,
                                void *cbdata)
{
    assert(nqueries == 1 && !strcmp(queries[0].keys[0], "site.key"));
    answer = cbfunc, answer_data = cbdata, asker = proc;
    asked++;
    return IOF_SUCCESS;
}

static iof_status_t query_that_calls(iof_proc_t *proc, iof_query_t *queries, size_t nqueries, iof_info_cbfunc_t cbfunc,
                                     void *cbdata)
{
    static iof_status_t ignored;
    query_later(proc, queries, nqueries, cbfunc, cbdata);
    wait_for(&goes_on, 1);
    for (int times = 0; times < 100; times++) { /* The main thread creates the session meanwhile. */
        iof_Progress(), iof_progress_fd(), iof_Initialized();
        iof_IOF_deregister(1, NULL, 0, op, &ignored);
        poll(NULL, 0, 1);
    }
    return IOF_SUCCESS;
}

static void answer_it(void)
{
    iof_info_t info;
    assert(asker->nspace[0] == 0 && asker->rank == IOF_RANK_UNDEF);
    assert(iof_Info_load(&info, "site.key", "value", IOF_STRING) == IOF_SUCCESS);
    answer(IOF_SUCCESS, &info, 1, answer_data, NULL, NULL);
    iof_Value_destruct(&info.value);
}

static void *signals(void *arg)
{
    (void)arg;
    while (iof_server_signal("job", 1) != IOF_ERR_INIT) {
        reached++;
    }
    return NULL;
}

static void *waits(void *arg)
{
    int exit_code = 77;
    reached++;
    iof_status_t status = iof_server_wait("job", &exit_code);
    /* IOF_ERR_INIT: the library was finalized before the call. */
    assert((status == IOF_ERR_UNREACH || status == IOF_ERR_INIT) && exit_code == 77);
    (void)arg;
    return NULL;
}

/* Copies one descriptor to another until end of file. */
static void *copies(void *arg)
{
    int *pair = arg;
    char bytes[4096];
    ssize_t count;
    while ((count = read(pair[0], bytes, sizeof bytes)) > 0) {
        assert(write(pair[1], bytes, count) == count);
    }
    return NULL;
}

/* The descriptors of an adoption that is refused as a bad parameter stay open. */
static void refused_adoptions(void)
{
    int out[2];
    iof_adopted_t ranks[2] = {{.stdin_fd = -1, .stderr_fd = -1, .stddiag_fd = -1, .pidfd = -1}};
    assert(pipe(out) == 0);
    ranks[1] = ranks[0];
    ranks[0].stdout_fd = out[0];
    ranks[1].stdout_fd = -1;
    assert(iof_server_adopt("job", ranks, 0, NULL, 0) == IOF_ERR_BAD_PARAM);
    assert(iof_server_adopt("job", ranks, 2, NULL, 0) == IOF_ERR_BAD_PARAM); /* Rank 0 twice. */
    ranks[1].rank = IOF_RANK_WILDCARD;
    assert(iof_server_adopt("job", ranks, 2, NULL, 0) == IOF_ERR_BAD_PARAM);
    /* A required info that is unknown, and one of the wrong type. */
    iof_info_t info;
    assert(iof_Info_load(&info, "site.key", "value", IOF_STRING) == IOF_SUCCESS);
    info.flags = IOF_INFO_REQD;
    assert(iof_server_adopt("job", ranks, 1, &info, 1) == IOF_ERR_BAD_PARAM);
    iof_Value_destruct(&info.value);
    assert(iof_Info_load(&info, IOF_ELSEWHERE, "value", IOF_STRING) == IOF_SUCCESS);
    assert(iof_server_adopt("job", ranks, 1, &info, 1) == IOF_ERR_BAD_PARAM);
    iof_Value_destruct(&info.value);
    assert(fcntl(out[0], F_GETFD) >= 0);
}

/* Starts a job of one rank with IOF_MPI, which ends with 0 only if it has a socket of PMI. */
static iof_status_t spawn_mpi(const char *name, const char *protocol)
{
    char *argv[] = {"sh", "-c", "test \"$PMI_SIZE\" = 1 && test -S /proc/self/fd/$PMI_FD", NULL};
    iof_app_t app = {.cmd = "sh", .argv = argv, .maxprocs = 1};
    iof_info_t infos[2];
    assert(iof_Info_load(&infos[0], IOF_NSPACE, name, IOF_STRING) == IOF_SUCCESS);
    assert(iof_Info_load(&infos[1], IOF_MPI, protocol, IOF_STRING) == IOF_SUCCESS);
    iof_status_t status = iof_server_spawn(infos, 2, &app, 1, NULL);
    iof_Value_destruct(&infos[0].value);
    iof_Value_destruct(&infos[1].value);
    return status;
}

static void mpi_jobs(void)
{
    int code;
    unsetenv("PMI_SIZE");
    assert(spawn_mpi("mpi", "pmi1") == IOF_SUCCESS);
    assert(iof_server_wait("mpi", &code) == IOF_SUCCESS && code == 0);
    assert(spawn_mpi("plain", "none") == IOF_SUCCESS);
    assert(iof_server_wait("plain", &code) == IOF_SUCCESS && code == 1);
    assert(spawn_mpi("other", "pmi7") == IOF_ERR_BAD_PARAM);
}

int main(int argc, char **argv)
{
    const char *scenario = argc > 1 ? argv[1] : "";
    iof_server_module_t module = {0};
    pthread_t thread;
    assert(iof_Load_procid(&all, "job", IOF_RANK_WILDCARD) == IOF_SUCCESS);
    assert(iof_Load_procid(&rank0, "job", 0) == IOF_SUCCESS);
    if (!strcmp(scenario, "tool-with-threads")) {
        return tool_with_threads(), 0;
    }
    if (!strcmp(scenario, "tool-with-query")) {
        return tool_with_query(), 0;
    }
    module.query = !strcmp(scenario, "upcall") ? query_that_calls : query_later;
    if (!strcmp(scenario, "exit")) {
        atexit(at_exit);
    }
    iof_info_t drop;
    assert(iof_Info_load(&drop, IOF_IOF_DROP_NEWEST, NULL, IOF_BOOL) == IOF_SUCCESS);
    assert(iof_server_init(&module, &drop, !strcmp(scenario, "slow")) == IOF_SUCCESS);
    if (!strcmp(scenario, "exit")) {
        return 0;
    }
    if (!strcmp(scenario, "fork")) {
        forked();
    } else if (!strcmp(scenario, "threads")) {
        spawn("head -c 1; exec sleep 1000", 1);
        ends_well(start("tool-with-threads", -1));
        assert(iof_server_signal("job", SIGKILL) == IOF_SUCCESS);
    } else if (!strcmp(scenario, "upcall")) {
        pid_t tool = start("tool-with-query", -1);
        wait_for(&asked, 1);
        goes_on = 1;
        assert(iof_IOF_pull(&all, 1, NULL, 0, IOF_FWD_STDOUT_CHANNEL, output, NULL, NULL) > 0);
        answer_it();
        ends_well(tool);
    } else if (!strcmp(scenario, "unanswered")) {
        setenv("ENDS", "1", 1);
        pid_t tool = start("tool-with-query", -1);
        wait_for(&asked, 1);
        assert(iof_server_finalize() == IOF_SUCCESS);
        ends_well(tool);
        answer(IOF_SUCCESS, NULL, 0, answer_data, NULL, NULL); /* Has no effect. */
        printf("done\n");
        return 0;
    } else if (!strcmp(scenario, "busy")) {
        spawn("trap '' HUP; while echo; do sleep 0.1; done", 0); /* Runs until the engine ends. */
        assert(pthread_create(&thread, NULL, signals, NULL) == 0);
        wait_for(&reached, 1000);
        assert(iof_server_finalize() == IOF_SUCCESS);
        assert(pthread_join(thread, NULL) == 0);
        printf("done\n");
        return 0;
    } else if (!strcmp(scenario, "wait")) {
        spawn("while echo; do sleep 0.1; done", 0); /* Runs until the engine ends. */
        assert(iof_IOF_pull(&all, 1, NULL, 0, IOF_FWD_STDOUT_CHANNEL, output, NULL, NULL) > 0);
        assert(pthread_create(&thread, NULL, waits, NULL) == 0);
        wait_for(&reached, 1);
        poll(NULL, 0, 10);
        assert(iof_server_finalize() == IOF_SUCCESS);
        assert(pthread_join(thread, NULL) == 0);
        printf("done\n");
        return 0;
    } else if (!strcmp(scenario, "stdin")) {
        stdin_that_is_stopped();
    } else if (!strcmp(scenario, "stdin-again")) {
        stdin_of_jobs_that_end();
    } else if (!strcmp(scenario, "stdin-error")) {
        stdin_that_fails();
    } else if (!strcmp(scenario, "adopt")) {
        refused_adoptions();
    } else if (!strcmp(scenario, "mpi")) {
        mpi_jobs();
    } else if (!strcmp(scenario, "huge")) {
        /* More bytes than there is memory. They are never accessed. */
        size_t size = (size_t)1 << 45;
        iof_byte_object_t bo = {mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), size};
        iof_status_t status;
        assert(bo.bytes != MAP_FAILED);
        assert(iof_IOF_push(&rank0, 1, &bo, NULL, 0, op, &status) == IOF_ERR_NOMEM && *iof_last_error());
    } else if (!strcmp(scenario, "slow")) {
        /* The printed output is read only after the rank has written everything. */
        int pipes[2], pair[2], written[2];
        char script[64];
        assert(pipe2(pipes, O_CLOEXEC) == 0 && pipe(written) == 0);
        pair[0] = pipes[0], pair[1] = dup(1);
        assert(pair[1] > 0 && dup2(pipes[1], 1) == 1 && close(pipes[1]) == 0);
        assert(iof_IOF_pull(&all, 1, NULL, 0, IOF_FWD_STDOUT_CHANNEL, NULL, NULL, NULL) > 0);
        snprintf(script, sizeof script, "seq 1000000; echo > /proc/%d/fd/%d", (int)getpid(), written[1]);
        spawn(script, 0);
        assert(read(written[0], script, 1) == 1);
        assert(pthread_create(&thread, NULL, copies, pair) == 0);
        assert(iof_server_wait("job", NULL) == IOF_SUCCESS && iof_server_finalize() == IOF_SUCCESS);
        assert(close(1) == 0 && pthread_join(thread, NULL) == 0);
        return 0;
    } else if (!strcmp(scenario, "nonblocking")) {
        assert(fcntl(1, F_SETFL, fcntl(1, F_GETFL) | O_NONBLOCK) == 0);
        assert(iof_IOF_pull(&all, 1, NULL, 0, IOF_FWD_STDOUT_CHANNEL, NULL, NULL, NULL) > 0);
        spawn("seq 100000", 0);
        assert(iof_server_wait("job", NULL) == IOF_SUCCESS);
        assert(iof_server_finalize() == IOF_SUCCESS);
        return 0;
    } else {
        return 2;
    }
    assert(iof_server_finalize() == IOF_SUCCESS);
    printf("done\n");
    return 0;
}
