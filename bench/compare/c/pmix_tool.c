/*
 * The second half of the reference path: a tool that pulls all output of a job with PMIx_IOF_pull
 * and writes it to stdout, or pushes its stdin to the ranks with PMIx_IOF_push.
 *
 *     pmix_tool DIRECTORY PID pull|pull-local|push-one|push-all|push-blocking
 *
 * DIRECTORY contains the server's rendezvous files, and PID is the server's pid. "pull" receives
 * the bytes in a callback; "pull-local" leaves the writing to the library. "push-one" and
 * "push-all" push to rank 0 or to all ranks, with up to MAX_PENDING pushes pending; "push-blocking"
 * pushes to rank 0 with blocking calls.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <pmix.h>
#include <pmix_tool.h>

#define PIECE (64 * 1024)
#define MAX_PENDING 64

static const pmix_nspace_t nspace = "bench";
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool ended;
static int pending;

static void check(pmix_status_t status, const char *what)
{
    if (status < 0 && status != PMIX_OPERATION_SUCCEEDED) {
        fprintf(stderr, "%s: %s\n", what, PMIx_Error_string(status));
        exit(1);
    }
}

static void pulled(size_t handler, pmix_iof_channel_t channel, pmix_proc_t *source, pmix_byte_object_t *bytes,
                   pmix_info_t info[], size_t ninfo)
{
    (void) handler, (void) source, (void) info, (void) ninfo;
    if (channel & PMIX_FWD_STDDIAG_CHANNEL) {
        pthread_mutex_lock(&lock);
        ended = true;
        pthread_cond_signal(&changed);
        pthread_mutex_unlock(&lock);
        return;
    }
    for (size_t written = 0; bytes && written < bytes->size;) {
        ssize_t n = write(1, bytes->bytes + written, bytes->size - written);
        if (n < 0 && errno != EINTR) {
            exit(1);
        }
        written += n > 0 ? (size_t) n : 0;
    }
}

static void pull(bool local)
{
    pmix_proc_t from;
    PMIX_LOAD_PROCID(&from, nspace, PMIX_RANK_WILDCARD);
    if (local) {
        check(PMIx_IOF_pull(&from, 1, NULL, 0, PMIX_FWD_STDOUT_CHANNEL, NULL, NULL, NULL), "PMIx_IOF_pull");
    }
    pmix_iof_channel_t channels = PMIX_FWD_STDDIAG_CHANNEL | (local ? 0 : PMIX_FWD_STDOUT_CHANNEL);
    check(PMIx_IOF_pull(&from, 1, NULL, 0, channels, pulled, NULL, NULL), "PMIx_IOF_pull");
    pthread_mutex_lock(&lock);
    while (!ended) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
}

static void pushed(pmix_status_t status, void *data)
{
    (void) status;
    free(data);
    pthread_mutex_lock(&lock);
    pending--;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

/* Blocks until fewer than `limit` pushes are pending. */
static void wait_pending(int limit)
{
    pthread_mutex_lock(&lock);
    while (pending >= limit) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
}

static void push(bool blocking, pmix_rank_t rank)
{
    pmix_proc_t to;
    PMIX_LOAD_PROCID(&to, nspace, rank);
    for (ssize_t n = 1; n > 0;) {
        pmix_byte_object_t *bytes = malloc(sizeof *bytes + PIECE);
        bytes->bytes = (char *) (bytes + 1);
        n = read(0, bytes->bytes, PIECE);
        bytes->size = n > 0 ? (size_t) n : 0;
        if (blocking) {
            check(PMIx_IOF_push(&to, 1, bytes, NULL, 0, NULL, NULL), "PMIx_IOF_push");
            free(bytes);
            continue;
        }
        wait_pending(MAX_PENDING);
        pthread_mutex_lock(&lock);
        pending++;
        pthread_mutex_unlock(&lock);
        check(PMIx_IOF_push(&to, 1, bytes, NULL, 0, pushed, bytes), "PMIx_IOF_push");
    }
    wait_pending(1);
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: pmix_tool DIRECTORY PID pull|pull-local|push-one|push-all|push-blocking\n");
        return 2;
    }
    setenv("PMIX_SERVER_TMPDIR", argv[1], 1);
    pid_t pid = (pid_t) atoi(argv[2]);
    pmix_info_t info[1];
    pmix_proc_t self;
    PMIX_INFO_LOAD(&info[0], PMIX_SERVER_PIDINFO, &pid, PMIX_PID);
    check(PMIx_tool_init(&self, info, 1), "PMIx_tool_init");
    const char *what = argv[3];
    if (!strncmp(what, "push", 4)) {
        push(!strcmp(what, "push-blocking"), strcmp(what, "push-all") ? 0 : PMIX_RANK_WILDCARD);
    } else {
        pull(!strcmp(what, "pull-local"));
    }
    PMIx_tool_finalize();
    return 0;
}
