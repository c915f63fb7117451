/* A tool that reads consecutive jobs of one nspace and counts their bytes, ends and losses. */
#include <assert.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <iof.h>

static volatile unsigned long bytes, lost, ends, jobs;

static void output(size_t handler, iof_iof_channel_t channel, iof_proc_t *source, iof_byte_object_t *payload,
                   iof_info_t info[], size_t ninfo)
{
    (void)handler, (void)channel, (void)source;
    bytes += payload->size;
    for (size_t i = 0; i < ninfo; i++) {
        ends += !strcmp(info[i].key, IOF_IOF_COMPLETE);
        if (!strcmp(info[i].key, IOF_LOST)) {
            lost += info[i].value.data.uint64;
        }
    }
}

static void event(size_t id, iof_status_t status, const iof_proc_t *source, iof_info_t info[], size_t ninfo,
                  iof_info_t *results, size_t nresults, iof_event_notification_cbfunc_fn_t cbfunc, void *cbdata)
{
    (void)id, (void)source, (void)info, (void)ninfo, (void)results, (void)nresults, (void)cbfunc, (void)cbdata;
    assert(status == IOF_EVENT_JOB_END);
    jobs++;
}

int main(int argc, char **argv)
{
    iof_info_t info;
    iof_proc_t all;
    int code = IOF_EVENT_JOB_END;
    char line[64];
    assert(argc == 2);
    assert(iof_Info_load(&info, IOF_SERVER_URI, argv[1], IOF_STRING) == IOF_SUCCESS);
    assert(iof_tool_init(NULL, &info, 1) == IOF_SUCCESS);
    iof_Value_destruct(&info.value);
    assert(iof_Register_event_handler(&code, 1, NULL, 0, event, NULL, NULL) > 0);
    assert(iof_Load_procid(&all, "job", IOF_RANK_WILDCARD) == IOF_SUCCESS);
    assert(iof_IOF_pull(&all, 1, NULL, 0, IOF_FWD_STDOUT_CHANNEL, output, NULL, NULL) > 0);
    printf("ready\n");
    fflush(stdout);
    /* Each line is a number of jobs. The answer comes when this many jobs have ended. */
    while (fgets(line, sizeof line, stdin)) {
        while (jobs < strtoul(line, NULL, 10)) {
            poll(NULL, 0, 1);
        }
        printf("jobs %lu ends %lu bytes %lu lost %lu\n", jobs, ends, bytes, lost);
        fflush(stdout);
    }
    assert(iof_tool_finalize() == IOF_SUCCESS);
    return 0;
}
