/* A tool of .ci/history in C: writes what it gets of a job as JSON, a line for each payload, gap and end of a stream.
 *
 *     history_tool PID DIRECTORY JOB CHANNELS [RANK...]
 *
 * Bytes are text, or hexadecimal if they are more than printable ASCII and newlines. Exit code 0: the job has ended and so
 * have its streams. 1: a stream is broken, or the engine has gone. 2: there is no engine.
 */
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <iof.h>

static sem_t ended;
static iof_status_t end;
static unsigned long broken, missing;

static void begin(const char *type, iof_iof_channel_t channel, const iof_proc_t *source, unsigned long offset)
{
    const char *name = channel == IOF_FWD_STDOUT_CHANNEL ? "stdout" : channel == IOF_FWD_STDERR_CHANNEL ? "stderr" : "stddiag";
    char rank[16] = "null";
    if (source->rank < IOF_RANK_WILDCARD)
        snprintf(rank, sizeof rank, "%u", source->rank);
    printf("{\"type\":\"%s\",\"nspace\":\"%s\",\"rank\":%s,\"channel\":\"%s\",\"offset\":%lu", type, source->nspace, rank, name, offset);
}

static void write_bytes(const unsigned char *bytes, size_t size)
{
    int is_hex = 0;
    for (size_t i = 0; i < size; i++)
        is_hex |= (bytes[i] < ' ' && bytes[i] != '\n') || bytes[i] > '~' || bytes[i] == '"' || bytes[i] == '\\';
    printf(is_hex ? ",\"encoding\":\"hex\",\"data\":\"" : ",\"data\":\"");
    for (size_t i = 0; i < size; i++) {
        if (is_hex)
            printf("%02x", bytes[i]);
        else if (bytes[i] == '\n')
            fputs("\\n", stdout);
        else
            putchar(bytes[i]);
    }
    fputs("\"}\n", stdout);
}

static void output(size_t handler, iof_iof_channel_t channel, iof_proc_t *source, iof_byte_object_t *payload,
                   iof_info_t *info, size_t ninfo)
{
    unsigned long offset = 0, lost = 0, less = 0;
    int is_end = 0, is_broken = 0;
    (void)handler;
    for (size_t i = 0; i < ninfo; i++) {
        unsigned long value = info[i].value.data.uint64;
        if (!strcmp(info[i].key, IOF_OFFSET))
            offset = value;
        else if (!strcmp(info[i].key, IOF_LOST))
            lost = value;
        else if (!strcmp(info[i].key, IOF_BROKEN))
            is_broken = 1, less = value;
        else if (!strcmp(info[i].key, IOF_IOF_COMPLETE))
            is_end = 1;
    }
    if (lost) {
        begin("gap", channel, source, offset - (source->rank < IOF_RANK_WILDCARD ? lost : 0));
        printf(",\"lost\":%lu}\n", lost);
    }
    if (payload->size) {
        begin("output", channel, source, offset);
        write_bytes((const unsigned char *)payload->bytes, payload->size);
    }
    if (is_broken) {
        broken++, missing += less;
        begin("end", channel, source, offset);
        printf(",\"missing\":%lu}\n", less);
    } else if (is_end) {
        begin("end", channel, source, offset);
        puts("}");
    }
}

static void event(size_t id, iof_status_t status, const iof_proc_t *source, iof_info_t *info, size_t ninfo, iof_info_t *results,
                  size_t nresults, iof_event_notification_cbfunc_fn_t cbfunc, void *cbdata)
{
    (void)id, (void)source, (void)info, (void)ninfo, (void)results, (void)nresults, (void)cbfunc, (void)cbdata;
    if (!end)
        end = status;
    sem_post(&ended);
}

static void check(iof_status_t status)
{
    if (status < 0) {
        fprintf(stderr, "iof: cannot connect: %s %s\n", iof_Error_string(status), iof_last_error());
        fflush(stdout);
        _Exit(2);
    }
}

int main(int argc, char **argv)
{
    iof_status_t codes[] = {IOF_EVENT_JOB_END, IOF_ERR_LOST_CONNECTION};
    pid_t pid = argc < 5 ? 0 : atoi(argv[1]);
    iof_proc_t *ranks = calloc((size_t)argc, sizeof *ranks);
    size_t count = argc > 5 ? (size_t)argc - 5 : 1;
    iof_info_t info[2];
    if (!pid || !ranks)
        return 97;
    sem_init(&ended, 0, 0);
    for (size_t i = 0; i < count; i++)
        check(iof_Load_procid(&ranks[i], argv[3], argc > 5 ? (iof_rank_t)atoi(argv[5 + i]) : IOF_RANK_WILDCARD));
    check(iof_Info_load(&info[0], IOF_SERVER_PIDINFO, &pid, IOF_PID));
    check(iof_Info_load(&info[1], IOF_SERVER_TMPDIR, argv[2], IOF_STRING));
    check(iof_tool_init(NULL, info, 2));
    check(iof_Register_event_handler(codes, 2, NULL, 0, event, NULL, NULL));
    check(iof_IOF_pull(ranks, count, NULL, 0, (iof_iof_channel_t)atoi(argv[4]), output, NULL, NULL));
    while (sem_wait(&ended))
        continue;
    iof_tool_finalize();
    if (end != IOF_EVENT_JOB_END)
        fprintf(stderr, "iof: lost the engine\n");
    if (broken)
        fprintf(stderr, "iof: %lu streams are broken: at least %lu bytes are missing\n", broken, missing);
    if (fflush(stdout) || ferror(stdout))
        return 3;
    return broken || end != IOF_EVENT_JOB_END;
}
