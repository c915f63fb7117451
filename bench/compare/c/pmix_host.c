/*
 * The first half of the reference path: a launcher that hosts PMIx's own forwarding. It starts
 * ranks, reads their stdout and passes each piece to PMIx_server_IOF_deliver. It writes what tools
 * push to the ranks' stdin.
 *
 *     pmix_host DIRECTORY RANKS READ TOOL MODE PROGRAM ARGS...
 *
 * Puts the server's rendezvous files into DIRECTORY, starts RANKS ranks and reads READ bytes at a
 * time. MODE is the mode of the program TOOL. A tool that pulls is started before the ranks, which
 * wait for its pull; a tool that pushes is started after them. With "-" no tool is started, and a
 * late tool gets the output that the library has cached. IOF_BENCH_RANK contains the number of a
 * rank. One byte on the diagnostics channel tells the tools that all output has ended.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pmix.h>
#include <pmix_server.h>

/* The limit of bytes that are delivered and not called back. Beyond it nothing more is read. */
#define MAX_PENDING (1 << 20)

static const pmix_nspace_t nspace = "bench";
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static size_t pending;      /* bytes that are delivered and not called back */
static int pulls;           /* pull requests so far */
static bool job_registered; /* whether the library knows the job */
static int *stdins;         /* the ranks' stdin pipes, -1 when closed */
static int ranks;
static pmix_proc_t *procs;

/* A piece that was delivered. The library reads it until it calls back. */
struct piece {
    pmix_byte_object_t bytes;
    char data[];
};

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void check(pmix_status_t status, const char *what)
{
    if (status != PMIX_SUCCESS && status != PMIX_OPERATION_SUCCEEDED) {
        fprintf(stderr, "%s: %s\n", what, PMIx_Error_string(status));
        exit(1);
    }
}

static pmix_status_t iof_pull(const pmix_proc_t from[], size_t count, const pmix_info_t info[], size_t ninfo,
                              pmix_iof_channel_t channels, pmix_op_cbfunc_t done, void *data)
{
    (void) from, (void) count, (void) info, (void) ninfo, (void) channels, (void) done, (void) data;
    pthread_mutex_lock(&lock);
    pulls++;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    return PMIX_OPERATION_SUCCEEDED;
}

static void write_stdin(int rank, const pmix_byte_object_t *bytes)
{
    size_t written = 0;
    while (stdins[rank] >= 0 && written < bytes->size) {
        ssize_t n = write(stdins[rank], bytes->bytes + written, bytes->size - written);
        if (n > 0) {
            written += (size_t) n;
        } else if (errno != EINTR) {
            close(stdins[rank]);
            stdins[rank] = -1;
        }
    }
    if (bytes->size == 0 && stdins[rank] >= 0) {
        close(stdins[rank]);
        stdins[rank] = -1;
    }
}

/* Runs on the library's thread: a rank that does not read blocks all work of the library. */
static pmix_status_t push_stdin(const pmix_proc_t *source, const pmix_proc_t targets[], size_t count,
                                const pmix_info_t info[], size_t ninfo, const pmix_byte_object_t *bytes,
                                pmix_op_cbfunc_t done, void *data)
{
    static const pmix_byte_object_t end = { NULL, 0 };
    (void) source, (void) info, (void) ninfo;
    for (size_t i = 0; i < count; i++) {
        for (int rank = 0; rank < ranks; rank++) {
            if (targets[i].rank == PMIX_RANK_WILDCARD || targets[i].rank == (pmix_rank_t) rank) {
                write_stdin(rank, bytes ? bytes : &end);
            }
        }
    }
    done(PMIX_SUCCESS, data);
    return PMIX_SUCCESS;
}

static void tool_connected(pmix_info_t *info, size_t ninfo, pmix_tool_connection_cbfunc_t done, void *data)
{
    static int tools;
    pmix_proc_t proc;
    (void) info, (void) ninfo;
    memset(&proc, 0, sizeof proc);
    snprintf(proc.nspace, sizeof proc.nspace, "tool%d", tools++);
    done(PMIX_SUCCESS, &proc, data);
}

static void delivered(pmix_status_t status, void *data)
{
    struct piece *piece = data;
    (void) status;
    pthread_mutex_lock(&lock);
    pending -= piece->bytes.size;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    free(piece);
}

static void registered(pmix_status_t status, void *data)
{
    (void) data;
    check(status, "PMIx_server_register_nspace");
    pthread_mutex_lock(&lock);
    job_registered = true;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

static void deliver(int rank, pmix_iof_channel_t channel, struct piece *piece)
{
    pthread_mutex_lock(&lock);
    pending += piece->bytes.size;
    pthread_mutex_unlock(&lock);
    piece->bytes.bytes = piece->data;
    pmix_status_t status =
        PMIx_server_IOF_deliver(&procs[rank], channel, &piece->bytes, NULL, 0, delivered, piece);
    check(status, "PMIx_server_IOF_deliver");
}

/* Blocks until at most `limit` bytes are pending. */
static void wait_pending(size_t limit)
{
    pthread_mutex_lock(&lock);
    while (pending > limit) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
}

static void forward(int *stdouts, size_t size)
{
    struct epoll_event event = { .events = EPOLLIN }, events[64];
    int epoll = epoll_create1(EPOLL_CLOEXEC), remaining = ranks;
    for (int rank = 0; rank < ranks; rank++) {
        event.data.u32 = (uint32_t) rank;
        epoll_ctl(epoll, EPOLL_CTL_ADD, stdouts[rank], &event);
    }
    while (remaining > 0) {
        int ready = epoll_wait(epoll, events, 64, -1);
        for (int i = 0; i < ready; i++) {
            int rank = (int) events[i].data.u32;
            struct piece *piece = malloc(sizeof *piece + size);
            if (!piece) {
                fail("malloc");
            }
            ssize_t n = read(stdouts[rank], piece->data, size);
            if (n > 0) {
                piece->bytes.size = (size_t) n;
                deliver(rank, PMIX_FWD_STDOUT_CHANNEL, piece);
                wait_pending(MAX_PENDING);
            } else {
                free(piece);
                epoll_ctl(epoll, EPOLL_CTL_DEL, stdouts[rank], NULL);
                close(stdouts[rank]);
                remaining--;
            }
        }
    }
}

static void start(char **command, int rank, int *out)
{
    int stdout_pipe[2], stdin_pipe[2];
    if (pipe2(stdout_pipe, O_CLOEXEC) || pipe2(stdin_pipe, O_CLOEXEC)) {
        fail("pipe2");
    }
    pid_t pid = fork();
    if (pid < 0) {
        fail("fork");
    }
    if (pid == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", rank);
        setenv("IOF_BENCH_RANK", number, 1);
        dup2(stdin_pipe[0], 0);
        dup2(stdout_pipe[1], 1);
        execvp(command[0], command);
        _exit(127);
    }
    close(stdin_pipe[0]);
    close(stdout_pipe[1]);
    stdins[rank] = stdin_pipe[1];
    *out = stdout_pipe[0];
}

static void start_tool(const char *tool, const char *directory, const char *mode)
{
    char pid[16];
    snprintf(pid, sizeof pid, "%d", (int) getpid());
    if (fork() == 0) {
        execl(tool, tool, directory, pid, mode, NULL);
        _exit(127);
    }
}

int main(int argc, char **argv)
{
    if (argc < 7) {
        fprintf(stderr, "usage: pmix_host DIRECTORY RANKS READ TOOL MODE PROGRAM ARGS...\n");
        return 2;
    }
    const char *directory = argv[1], *tool = argv[4], *mode = argv[5];
    size_t size = (size_t) atol(argv[3]);
    ranks = atoi(argv[2]);
    procs = calloc((size_t) ranks, sizeof *procs);
    stdins = calloc((size_t) ranks, sizeof *stdins);
    int *stdouts = calloc((size_t) ranks, sizeof *stdouts);
    signal(SIGPIPE, SIG_IGN);

    pmix_server_module_t module;
    memset(&module, 0, sizeof module);
    module.tool_connected = tool_connected;
    module.iof_pull = iof_pull;
    module.push_stdin = push_stdin;
    pmix_info_t info[3];
    bool yes = true, no = false;
    PMIX_INFO_LOAD(&info[0], PMIX_SERVER_TOOL_SUPPORT, &yes, PMIX_BOOL);
    PMIX_INFO_LOAD(&info[1], PMIX_SERVER_TMPDIR, directory, PMIX_STRING);
    /* Without this the library crashes at the first piece. */
    PMIX_INFO_LOAD(&info[2], PMIX_IOF_LOCAL_OUTPUT, &no, PMIX_BOOL);
    check(PMIx_server_init(&module, info, 3), "PMIx_server_init");
    check(PMIx_server_register_nspace(nspace, ranks, NULL, 0, registered, NULL), "PMIx_server_register_nspace");
    pthread_mutex_lock(&lock);
    while (!job_registered) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);

    if (!strncmp(mode, "pull", 4)) {
        start_tool(tool, directory, mode);
        pthread_mutex_lock(&lock);
        while (pulls == 0) {
            pthread_cond_wait(&changed, &lock);
        }
        pthread_mutex_unlock(&lock);
    }

    for (int rank = 0; rank < ranks; rank++) {
        PMIX_LOAD_PROCID(&procs[rank], nspace, (pmix_rank_t) rank);
        start(argv + 6, rank, &stdouts[rank]);
    }
    if (!strncmp(mode, "push", 4)) {
        start_tool(tool, directory, mode);
    }
    forward(stdouts, size);
    struct piece *end = malloc(sizeof *end + 1);
    end->bytes.size = 1;
    end->data[0] = '\n';
    deliver(0, PMIX_FWD_STDDIAG_CHANNEL, end);
    wait_pending(0);

    int failed = 0, status;
    while (wait(&status) > 0) {
        failed |= status != 0;
    }
    PMIx_server_finalize();
    return failed;
}
