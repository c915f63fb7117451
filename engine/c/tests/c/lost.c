/* A tool that pushes its own stdin and then loses its engine. */
#include <assert.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <iof.h>

static volatile bool gone, lost, received;
static volatile int answered;
static volatile iof_status_t answer;

static void output(size_t handler, iof_iof_channel_t channel, iof_proc_t *source, iof_byte_object_t *payload,
                   iof_info_t info[], size_t ninfo)
{
    (void)handler, (void)channel, (void)source;
    assert(!gone);
    received = received || (payload->size >= 6 && !memcmp(payload->bytes, "pushed", 6));
    for (size_t i = 0; i < ninfo; i++) {
        gone = gone || !strcmp(info[i].key, IOF_GONE);
    }
}

static void event(size_t id, iof_status_t status, const iof_proc_t *source, iof_info_t info[], size_t ninfo,
                  iof_info_t *results, size_t nresults, iof_event_notification_cbfunc_fn_t cbfunc, void *cbdata)
{
    (void)id, (void)source, (void)info, (void)ninfo, (void)results, (void)nresults, (void)cbfunc, (void)cbdata;
    assert(status == IOF_ERR_LOST_CONNECTION && gone);
    lost = true;
}

static void done(iof_status_t status, void *cbdata)
{
    (void)cbdata;
    answer = status;
    answered++;
}

int main(int argc, char **argv)
{
    iof_info_t info;
    iof_proc_t all, rank;
    iof_byte_object_t bo = {"more\n", 5};
    int code = IOF_ERR_LOST_CONNECTION;
    (void)argc;
    assert(iof_Info_load(&info, IOF_SERVER_URI, argv[1], IOF_STRING) == IOF_SUCCESS);
    assert(iof_tool_init(NULL, &info, 1) == IOF_SUCCESS);
    iof_Value_destruct(&info.value);
    assert(iof_Register_event_handler(&code, 1, NULL, 0, event, NULL, NULL) > 0);
    assert(iof_Load_procid(&all, "job", IOF_RANK_WILDCARD) == IOF_SUCCESS);
    assert(iof_Load_procid(&rank, "job", 0) == IOF_SUCCESS);
    assert(iof_IOF_pull(&all, 1, NULL, 0, IOF_FWD_STDOUT_CHANNEL, output, NULL, NULL) > 0);

    assert(iof_Info_load(&info, IOF_IOF_PUSH_STDIN, NULL, IOF_BOOL) == IOF_SUCCESS);
    assert(iof_IOF_push(&rank, 1, NULL, &info, 1, done, NULL) == IOF_SUCCESS);
    while (!answered || !received) {
        poll(NULL, 0, 1);
    }
    assert(answer == IOF_SUCCESS);
    /* The rank's stdin is closed, so another push fails. */
    assert(iof_IOF_push(&rank, 1, &bo, NULL, 0, NULL, NULL) < 0 && *iof_last_error());
    printf("received\n");
    fflush(stdout);
    while (!lost) {
        poll(NULL, 0, 1);
    }
    /* Calls without an engine are answered, too. */
    assert(iof_IOF_pull(&all, 1, NULL, 0, IOF_FWD_STDOUT_CHANNEL, output, NULL, NULL) == IOF_ERR_UNREACH);
    assert(iof_IOF_push(&rank, 1, &bo, NULL, 0, done, NULL) == IOF_SUCCESS);
    while (answered < 2) {
        poll(NULL, 0, 1);
    }
    assert(answer == IOF_ERR_UNREACH);
    assert(iof_tool_finalize() == IOF_SUCCESS);
    printf("lost\n");
    return 0;
}
