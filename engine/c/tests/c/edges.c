/* What programs do at the edges: finalize when they exit or while others wait, fork, call from within callbacks. The
 * first argument says what; each is over only if nothing hangs. */
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

static _Atomic int reached, answered;
static iof_proc_t all, rank0;

static void until(_Atomic int *what, int count)
{
    while (*what < count) {
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

/* Ourselves again, as a tool of the engine that is here. */
static pid_t as_tool(const char *what)
{
    setenv("IOF_SERVER", iof_server_uri(), 1);
    pid_t child = fork();
    assert(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", "edges", what, (char *)NULL);
        abort();
    }
    return child;
}

static void ends_well(pid_t child)
{
    int status;
    assert(waitpid(child, &status, 0) == child && status == 0);
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

static void *pushes(void *arg)
{
    static char bytes[4 << 20];
    iof_byte_object_t bo = {bytes, sizeof bytes};
    (void)arg;
    assert(iof_IOF_push(&rank0, 1, &bo, NULL, 0, NULL, NULL) == IOF_ERR_UNREACH);
    return NULL;
}

/* One thread waits, and so progresses the library; others wait for other things, ask, and finalize. */
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
    until(&reached, 1); /* It has got some of it. */
    iof_Progress();
    iof_progress_timeout();
    assert(iof_Query_info(&query, 1, &results, &nresults) == IOF_SUCCESS);
    iof_Info_free(results, nresults);
    assert(iof_tool_finalize() == IOF_SUCCESS);
    assert(pthread_join(thread, NULL) == 0);
}

static void tool_that_asks(void)
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

/* As launchers do: it is answered later, on a thread of their own. */
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
    until(&goes_on, 1);
    for (int times = 0; times < 100; times++) { /* Meanwhile it is being begun what these need. */
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
    assert(iof_Info_load(&info, "site.key", "as told", IOF_STRING) == IOF_SUCCESS);
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
    /* IOF_ERR_INIT: it came too late to find anything. */
    assert((status == IOF_ERR_UNREACH || status == IOF_ERR_INIT) && exit_code == 77);
    (void)arg;
    return NULL;
}

/* Copies what comes from one descriptor to another, to its end. */
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

/* What is refused as a bad parameter stays the launcher's. */
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
    assert(fcntl(out[0], F_GETFD) >= 0);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    iof_server_module_t module = {0};
    pthread_t thread;
    assert(iof_Load_procid(&all, "job", IOF_RANK_WILDCARD) == IOF_SUCCESS);
    assert(iof_Load_procid(&rank0, "job", 0) == IOF_SUCCESS);
    if (!strcmp(what, "tool-with-threads")) {
        return tool_with_threads(), 0;
    }
    if (!strcmp(what, "tool-that-asks")) {
        return tool_that_asks(), 0;
    }
    module.query = !strcmp(what, "upcall") ? query_that_calls : query_later;
    if (!strcmp(what, "exit")) {
        atexit(at_exit);
    }
    assert(iof_server_init(&module, NULL, 0) == IOF_SUCCESS);
    if (!strcmp(what, "exit")) {
        return 0;
    }
    if (!strcmp(what, "fork")) {
        forked();
    } else if (!strcmp(what, "threads")) {
        spawn("head -c 1; exec sleep 1000", 1);
        ends_well(as_tool("tool-with-threads"));
        assert(iof_server_signal("job", SIGKILL) == IOF_SUCCESS);
    } else if (!strcmp(what, "upcall")) {
        pid_t tool = as_tool("tool-that-asks");
        until(&asked, 1);
        goes_on = 1;
        assert(iof_IOF_pull(&all, 1, NULL, 0, IOF_FWD_STDOUT_CHANNEL, output, NULL, NULL) > 0);
        answer_it();
        ends_well(tool);
    } else if (!strcmp(what, "unanswered")) {
        setenv("ENDS", "1", 1);
        pid_t tool = as_tool("tool-that-asks");
        until(&asked, 1);
        assert(iof_server_finalize() == IOF_SUCCESS);
        ends_well(tool);
        answer(IOF_SUCCESS, NULL, 0, answer_data, NULL, NULL); /* To nobody. */
        printf("over\n");
        return 0;
    } else if (!strcmp(what, "busy")) {
        spawn("trap '' HUP; while echo; do sleep 0.1; done", 0); /* Until the engine has gone. */
        assert(pthread_create(&thread, NULL, signals, NULL) == 0);
        until(&reached, 1000);
        assert(iof_server_finalize() == IOF_SUCCESS);
        assert(pthread_join(thread, NULL) == 0);
        printf("over\n");
        return 0;
    } else if (!strcmp(what, "wait")) {
        spawn("while echo; do sleep 0.1; done", 0); /* Until the engine has gone. */
        assert(iof_IOF_pull(&all, 1, NULL, 0, IOF_FWD_STDOUT_CHANNEL, output, NULL, NULL) > 0);
        assert(pthread_create(&thread, NULL, waits, NULL) == 0);
        until(&reached, 1);
        poll(NULL, 0, 10);
        assert(iof_server_finalize() == IOF_SUCCESS);
        assert(pthread_join(thread, NULL) == 0);
        printf("over\n");
        return 0;
    } else if (!strcmp(what, "adopt")) {
        refused_adoptions();
    } else if (!strcmp(what, "huge")) {
        /* More than there is memory for; nobody looks at it. */
        size_t size = (size_t)1 << 45;
        iof_byte_object_t bo = {mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), size};
        iof_status_t status;
        assert(bo.bytes != MAP_FAILED);
        assert(iof_IOF_push(&rank0, 1, &bo, NULL, 0, op, &status) == IOF_ERR_NOMEM && *iof_last_error());
    } else if (!strcmp(what, "slow")) {
        /* Nobody reads what is printed before the rank has written all of it. */
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
    } else if (!strcmp(what, "nonblocking")) {
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
    printf("over\n");
    return 0;
}
