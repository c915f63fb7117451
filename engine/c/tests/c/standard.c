/* A tool as the PMIx Standard describes it, with PMIx's own names. A test compiles it against
 * pmix.h, and against iof.h after renaming the prefix. Arguments: the URI of the server, and the
 * number of ranks of the job "job", each of which reads a line. */
#include <pmix_tool.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    _Atomic int active;
    pmix_status_t status;
    size_t id;
} request_t;

#define WAIT(request)                                                                                      \
    while ((request).active) {                                                                             \
        poll(NULL, 0, 1);                                                                                  \
    }

static _Atomic size_t answers;
static request_t job_end = {.active = 1, .status = PMIX_ERROR, .id = 0};

static void fails(const char *what, pmix_status_t status)
{
    fprintf(stderr, "%s: %s\n", what, PMIx_Error_string(status));
    exit(1);
}

static void registered(pmix_status_t status, size_t id, void *cbdata)
{
    request_t *request = cbdata;
    request->status = status;
    request->id = id;
    request->active = 0;
}

static void completed(pmix_status_t status, void *cbdata)
{
    request_t *request = cbdata;
    request->status = status;
    request->active = 0;
}

static void answered(pmix_status_t status, pmix_info_t *info, size_t ninfo, void *cbdata,
                     pmix_release_cbfunc_t release_fn, void *release_cbdata)
{
    request_t *request = cbdata;
    for (size_t n = 0; n < ninfo; n++) {
        if (PMIX_CHECK_KEY(&info[n], PMIX_QUERY_PROC_TABLE) && PMIX_DATA_ARRAY == info[n].value.type) {
            pmix_data_array_t *array = info[n].value.data.darray;
            pmix_proc_info_t *procs = array->array;
            for (size_t m = 0; m < array->size; m++) {
                request->id += procs[m].state < PMIX_PROC_STATE_UNTERMINATED;
            }
        }
    }
    if (NULL != release_fn) {
        release_fn(release_cbdata);
    }
    request->status = status;
    request->active = 0;
}

static void output(size_t handler, pmix_iof_channel_t channel, pmix_proc_t *source, pmix_byte_object_t *payload,
                   pmix_info_t info[], size_t ninfo)
{
    (void)handler, (void)info, (void)ninfo;
    if (PMIX_FWD_STDOUT_CHANNEL == channel && PMIX_RANK_IS_VALID(source->rank) && NULL != payload->bytes) {
        for (size_t n = 0; n + 4 <= payload->size; n++) {
            answers += 0 == memcmp(payload->bytes + n, "got ", 4);
        }
    }
}

static void event(size_t id, pmix_status_t status, const pmix_proc_t *source, pmix_info_t info[], size_t ninfo,
                  pmix_info_t *results, size_t nresults, pmix_event_notification_cbfunc_fn_t cbfunc, void *cbdata)
{
    (void)id, (void)results, (void)nresults;
    switch (status) {
    case PMIX_EVENT_JOB_END:
        for (size_t n = 0; n < ninfo; n++) {
            if (PMIX_CHECK_KEY(&info[n], PMIX_JOB_TERM_STATUS)) {
                job_end.status = info[n].value.data.status;
            }
        }
        job_end.active = !PMIX_CHECK_NSPACE(source->nspace, "job");
        break;
    case PMIX_ERR_PROC_ABORTED:
    case PMIX_ERR_PROC_TERM_WO_SYNC:
    case PMIX_ERR_JOB_TERM_WO_SYNC:
    case PMIX_ERR_LOST_CONNECTION:
        fails("event", status);
        break;
    default:
        break;
    }
    if (NULL != cbfunc) {
        cbfunc(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, cbdata);
    }
}

int main(int argc, char **argv)
{
    pmix_proc_t self = PMIX_PROC_STATIC_INIT, job = PMIX_PROC_STATIC_INIT;
    pmix_info_t *infos = NULL, end = PMIX_INFO_STATIC_INIT;
    pmix_value_t value = PMIX_VALUE_STATIC_INIT, *copy = NULL;
    pmix_query_t query = PMIX_QUERY_STATIC_INIT;
    pmix_byte_object_t bytes = PMIX_BYTE_OBJECT_STATIC_INIT;
    pmix_data_array_t array = PMIX_DATA_ARRAY_STATIC_INIT;
    pmix_app_t app = PMIX_APP_STATIC_INIT;
    pmix_proc_info_t process = PMIX_PROC_INFO_STATIC_INIT;
    pmix_envar_t variable = PMIX_ENVAR_STATIC_INIT;
    pmix_regattr_t attribute = PMIX_REGATTR_STATIC_INIT;
    pmix_scope_t scope = PMIX_GLOBAL;
    pmix_persistence_t persistence = PMIX_PERSIST_APP;
    pmix_data_range_t range = PMIX_RANGE_NAMESPACE;
    pmix_job_state_t state = PMIX_JOB_STATE_UNDEF;
    pmix_status_t status, codes[] = {PMIX_EVENT_JOB_END, PMIX_ERR_PROC_ABORTED, PMIX_ERR_LOST_CONNECTION};
    request_t request = {.active = 1, .status = PMIX_SUCCESS, .id = 0}, events = request, pulled = request,
              pushed = request;
    int timeout = 60;
    char word[] = "hello\n";
    if (3 != argc) {
        return 2;
    }

    PMIX_INFO_CREATE(infos, 1);
    PMIX_INFO_LOAD(&infos[0], PMIX_SERVER_URI, argv[1], PMIX_STRING);
    if (PMIX_SUCCESS != (status = PMIx_tool_init(&self, infos, 1))) {
        fails("PMIx_tool_init", status);
    }
    PMIX_INFO_FREE(infos, 1);

    PMIX_INFO_CREATE(infos, 3);
    PMIX_INFO_LOAD(&infos[0], PMIX_EVENT_HDLR_NAME, "STANDARD", PMIX_STRING);
    PMIX_INFO_LOAD(&infos[1], PMIX_EVENT_RETURN_OBJECT, &request, PMIX_POINTER);
    PMIX_INFO_LOAD(&infos[2], PMIX_EVENT_HDLR_FIRST, NULL, PMIX_BOOL);
    PMIx_Register_event_handler(codes, 3, infos, 3, event, registered, &events);
    WAIT(events);
    PMIX_INFO_FREE(infos, 3);

    PMIX_LOAD_PROCID(&job, "job", PMIX_RANK_WILDCARD);
    status = PMIx_IOF_pull(&job, 1, NULL, 0, PMIX_FWD_STDOUT_CHANNEL | PMIX_FWD_STDERR_CHANNEL, output, registered,
                           &pulled);
    if (PMIX_SUCCESS != status) {
        fails("PMIx_IOF_pull", status);
    }
    WAIT(pulled);

    PMIX_ARGV_APPEND(status, query.keys, PMIX_QUERY_PROC_TABLE);
    PMIX_QUERY_QUALIFIERS_CREATE(&query, 2);
    PMIX_INFO_LOAD(&query.qualifiers[0], PMIX_NSPACE, "job", PMIX_STRING);
    PMIX_INFO_LOAD(&query.qualifiers[1], PMIX_TIMEOUT, &timeout, PMIX_INT);
    status = PMIx_Query_info_nb(&query, 1, answered, &request);
    if (PMIX_SUCCESS != status) {
        fails("PMIx_Query_info_nb", status);
    }
    WAIT(request);
    PMIX_QUERY_DESTRUCT(&query);

    bytes.bytes = word;
    bytes.size = strlen(word);
    PMIX_INFO_LOAD(&end, PMIX_IOF_COMPLETE, NULL, PMIX_BOOL);
    if (!PMIX_INFO_TRUE(&end)) {
        return 1;
    }
    status = PMIx_IOF_push(&job, 1, &bytes, &end, 1, completed, &pushed);
    if (PMIX_SUCCESS != status) {
        fails("PMIx_IOF_push", status);
    }
    WAIT(pushed);
    WAIT(job_end);

    PMIX_VALUE_LOAD(&value, "text", PMIX_STRING);
    PMIX_VALUE_XFER(status, copy, &value);
    printf("copy %s %s\n", PMIx_Error_string(status), copy->data.string);
    PMIX_VALUE_DESTRUCT(&value);
    PMIX_VALUE_RELEASE(copy);
    printf("scope %s, persistence %s, range %s\n", PMIx_Scope_string(scope), PMIx_Persistence_string(persistence),
           PMIx_Data_range_string(range));
    printf("empty %d %d %d %d %d %d\n", PMIX_UNDEF == array.type, NULL == app.argv, process.pid,
           NULL == variable.envar, NULL == attribute.name, state);
    printf("registered %d %d, running %d, pushed %d, ended %d\n", events.status, pulled.status,
           request.id == strtoul(argv[2], NULL, 10), pushed.status, job_end.status);
    printf("answers %zu\n", answers);
    PMIx_IOF_deregister(pulled.id, NULL, 0, NULL, NULL);
    PMIx_Deregister_event_handler(events.id, NULL, NULL);
    return PMIX_SUCCESS == PMIx_tool_finalize() ? 0 : 1;
}
