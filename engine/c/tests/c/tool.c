/* A tool for the job `job`. It pulls, pushes, queries and logs. Compiled with -DPMIX, it uses
 * only PMIx's own header and names. */
#include <assert.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef PMIX
#include <pmix_tool.h>
#define F(name) PMIx_##name
#define T(name) pmix_##name##_t
#define C(name) PMIX_##name
#else
#include <iof.h>
#define F(name) iof_##name
#define T(name) iof_##name##_t
#define C(name) IOF_##name
#endif

#define CHECK(call)                                                                                        \
    do {                                                                                                   \
        int status_ = (call);                                                                              \
        if (status_ < 0) {                                                                                 \
            fprintf(stderr, "%s: %s\n", #call, F(Error_string)(status_));                                  \
            abort();                                                                                       \
        }                                                                                                  \
    } while (0)

static volatile size_t bytes, ends, job_ended, registered, calls, registered_handler;
static volatile bool blocked;
static bool own_loop;

/* Progresses the library, or lets its thread run. */
static void turn(void)
{
#ifndef PMIX
    if (own_loop) {
        struct pollfd fd = {.fd = iof_progress_fd(), .events = POLLIN};
        poll(&fd, 1, iof_progress_timeout());
        iof_Progress();
        return;
    }
#endif
    poll(NULL, 0, 1);
}

#define WAIT(condition)                                                                                    \
    while (!(condition)) {                                                                                 \
        turn();                                                                                            \
    }

static void output(size_t handler, T(iof_channel) channel, T(proc) *source, T(byte_object) *payload, T(info) info[],
                   size_t ninfo)
{
    T(info) *results;
    size_t nresults;
    T(query) query = {0};
    char *keys[] = {C(QUERY_NAMESPACES), NULL};
    assert(handler && source && payload && source->rank < 8);
    assert(channel == C(FWD_STDOUT_CHANNEL) || channel == C(FWD_STDERR_CHANNEL));
    bytes += payload->size;
    for (size_t i = 0; i < ninfo; i++) {
        if (!strcmp(info[i].key, C(IOF_COMPLETE))) {
            assert(payload->size == 0 && info[i].value.type == C(BOOL) && info[i].value.data.flag);
            ends++;
        }
    }
    /* Calls that would wait for this callback are refused with -15, IOF_ERR_WOULD_BLOCK. */
    query.keys = keys;
    if (F(Query_info)(&query, 1, &results, &nresults) == -15 && F(tool_finalize)() == -15
        && F(IOF_deregister)(handler, NULL, 0, NULL, NULL) == -15) {
        blocked = true;
    }
}

static void is_registered(T(status) status, size_t id, void *cbdata)
{
    assert(cbdata == &registered);
    CHECK(status);
    registered_handler = id;
    registered++;
}

static void done(T(status) status, void *cbdata)
{
    assert(cbdata == &calls);
    CHECK(status);
    calls++;
}

static void refused(T(status) status, void *cbdata)
{
    *(volatile int *)cbdata = status;
}

static void answered(T(status) status, T(info) *info, size_t ninfo, void *cbdata, T(release_cbfunc) release_fn,
                     void *release_cbdata)
{
    assert(status == C(SUCCESS) && ninfo == 1 && info[0].value.type == C(STRING));
    assert(strstr(info[0].value.data.string, "job"));
    release_fn(release_cbdata);
    done(status, cbdata);
}

static void event(size_t id, T(status) status, const T(proc) *source, T(info) info[], size_t ninfo, T(info) *results,
                  size_t nresults, T(event_notification_cbfunc_fn) cbfunc, void *cbdata)
{
    (void)results, (void)nresults;
    assert(id > 0 && status == C(EVENT_JOB_END) && !strcmp(source->nspace, "job"));
    assert(ninfo == 3 && !strcmp(info[0].key, C(EVENT_AFFECTED_PROC)));
    assert(!strcmp(info[0].value.data.proc->nspace, "job") && info[0].value.data.proc->rank == C(RANK_WILDCARD));
    assert(!strcmp(info[1].key, C(JOB_TERM_STATUS)) && info[1].value.data.status == C(SUCCESS));
    assert(!strcmp(info[2].key, C(EXIT_CODE)) && info[2].value.data.integer == 0);
    job_ended++;
    cbfunc(C(SUCCESS), NULL, 0, NULL, NULL, cbdata);
}

static void free_infos(T(info) *infos, size_t count)
{
#ifdef PMIX
    PMIX_INFO_FREE(infos, count);
#else
    iof_Info_free(infos, count);
#endif
}

static void check_cache_size(const T(value) *functions)
{
    const T(data_array) *array = functions->data.darray;
    const T(info) *pull = array->array; /* The first function. */
    assert(array->type == C(INFO) && !strcmp(pull->key, "PMIx_IOF_pull"));
    array = pull->value.data.darray;
    assert(array->type == C(REGATTR));
    for (size_t i = 0; i < array->size; i++) {
        const T(regattr) *attribute = (const T(regattr) *)array->array + i;
        if (!strcmp(attribute->string, C(IOF_CACHE_SIZE))) {
            assert(!strcmp(attribute->name, "PMIX_IOF_CACHE_SIZE") && attribute->type == C(UINT32));
            assert(strstr(attribute->description[0], "cache") && !attribute->description[1]);
            return;
        }
    }
    assert(!"the attribute is missing");
}

/* Queries the attributes, of which each has its type and description. */
static void query_attributes(void)
{
    char *keys[] = {C(QUERY_ATTRIBUTE_SUPPORT), NULL};
    T(query) query = {.keys = keys};
    T(info) *results = NULL;
    size_t nresults = 0;
    CHECK(F(Query_info)(&query, 1, &results, &nresults));
    assert(nresults == 1 && results[0].value.type == C(DATA_ARRAY));
    check_cache_size(&results[0].value);
#ifndef PMIX
    iof_value_t copy;
    CHECK(iof_Value_xfer(&copy, &results[0].value));
    free_infos(results, nresults);
    check_cache_size(&copy);
    iof_Value_destruct(&copy);
#else
    free_infos(results, nresults);
#endif
}

/* Queries the process table, which the engine answers, and the list of queues, which the
 * launcher answers. */
static void query_job(int ranks)
{
    char *keys[] = {C(QUERY_LOCAL_PROC_TABLE), C(QUERY_QUEUE_LIST), NULL};
    T(query) query = {.keys = keys};
    T(info) *results = NULL;
    size_t nresults = 0;
    CHECK(F(Query_info)(&query, 1, &results, &nresults));
    assert(nresults == 2 && results[0].value.type == C(DATA_ARRAY));
    T(data_array) *table = results[0].value.data.darray;
    T(proc_info) *procs = table->array;
    assert(table->type == C(PROC_INFO) && (int)table->size >= ranks);
    assert(!strcmp(procs[0].executable_name, "sh") && procs[0].state == C(PROC_STATE_RUNNING));
    assert(!strcmp(results[1].value.data.string, "short,long"));
    free_infos(results, nresults);
    char *unknown[] = {"no.such.key", NULL};
    query.keys = unknown;
    results = (void *)&query;
    assert(F(Query_info)(&query, 1, &results, &nresults) == C(ERR_NOT_FOUND) && !results && !nresults);
}

int main(int argc, char **argv)
{
    T(proc) self, all, far;
    T(info) info[2];
    int ranks = atoi(argv[2]);
    (void)argc;
    own_loop = argc > 3;
    assert(!F(Initialized)());
    memset(&all, 0, sizeof all);
    strcpy(all.nspace, "job");
    all.rank = C(RANK_WILDCARD);
    far = all;
    strcpy(far.nspace, "far");
    far.rank = 3;
    assert(F(IOF_pull)(&all, 1, NULL, 0, C(FWD_STDOUT_CHANNEL), output, NULL, NULL) == C(ERR_INIT));
    /* If the call itself fails, the callback is not called. */
    assert(F(IOF_pull)(&all, 1, NULL, 0, C(FWD_STDOUT_CHANNEL), output, is_registered, (void *)&registered)
           == C(ERR_INIT));

    /* There is no server at this path. */
    CHECK(F(Info_load)(&info[0], C(SERVER_URI), "/nowhere/at/all", C(STRING)));
    assert(F(tool_init)(&self, info, 1) == C(ERR_UNREACH));
    F(Value_destruct)(&info[0].value);
    CHECK(F(Info_load)(&info[0], C(SERVER_URI), argv[1], C(STRING)));
    CHECK(F(Info_load)(&info[1], "pmix.evext", &own_loop, C(BOOL)));
    CHECK(F(tool_init)(&self, info, 2));
    CHECK(F(tool_init)(&self, NULL, 0));
    assert(F(Initialized)() && self.nspace[0] && self.rank == 0);
    F(Value_destruct)(&info[0].value);

    int code = C(EVENT_JOB_END);
    int id = F(Register_event_handler)(&code, 1, NULL, 0, event, NULL, NULL);
    CHECK(id);
    CHECK(F(IOF_pull)(&all, 1, NULL, 0, C(FWD_STDOUT_CHANNEL) | C(FWD_STDERR_CHANNEL), output, is_registered,
                      (void *)&registered));
    WAIT(registered == 1);
    int handler = F(IOF_pull)(&all, 1, NULL, 0, C(FWD_STDOUT_CHANNEL), output, NULL, NULL);
    CHECK(handler);
    assert(handler != (int)registered_handler);

    /* Pulls that the launcher or the engine refuses. */
    T(proc) secret = all;
    strcpy(secret.nspace, "secret");
    assert(F(IOF_pull)(&secret, 1, NULL, 0, C(FWD_STDOUT_CHANNEL), output, NULL, NULL) == C(ERR_NO_PERMISSIONS));
    assert(F(IOF_pull)(&all, 1, NULL, 0, C(FWD_STDIN_CHANNEL), output, NULL, NULL) == C(ERR_NOT_SUPPORTED));

    /* Both registrations receive the output so far. Then the second is removed. */
    size_t written = 3893 + 5, so_far = ranks * (written + 3893);
    WAIT(bytes >= so_far);
    CHECK(F(Info_load)(&info[0], "site.key", NULL, C(BOOL)));
    info[0].flags = C(INFO_REQD);
    assert(F(IOF_deregister)(handler, info, 1, NULL, NULL) == C(ERR_NOT_SUPPORTED));
    assert(F(IOF_deregister)(handler, NULL, 0, NULL, NULL) == C(SUCCESS));
    assert(F(IOF_deregister)(handler, NULL, 0, NULL, NULL) == C(ERR_BAD_PARAM));
    assert(blocked && bytes == so_far);

    query_job(ranks);
    query_attributes();
    char *keys[] = {C(QUERY_NAMESPACES), NULL};
    T(query) query = {.keys = keys};
    CHECK(F(Query_info_nb)(&query, 1, answered, (void *)&calls));
    WAIT(calls == 1);

    CHECK(F(Info_load)(&info[0], "site.notebook", "half done", C(STRING)));
    CHECK(F(Log)(info, 1, NULL, 0));
    CHECK(F(Log_nb)(info, 1, NULL, 0, done, (void *)&calls));
    WAIT(calls == 2);
    F(Value_destruct)(&info[0].value);
    CHECK(F(Info_load)(&info[0], "site.nowhere", "lost", C(STRING)));

    /* Push to a rank on another node and to the ranks here, with a callback and blocking. */
    T(byte_object) bo = {"hello\n", 6};
    T(info) end;
    CHECK(F(Info_load)(&end, C(IOF_COMPLETE), NULL, C(BOOL)));
    CHECK(F(IOF_push)(&far, 1, &bo, NULL, 0, done, (void *)&calls));
    CHECK(F(IOF_push)(&far, 1, NULL, &end, 1, NULL, NULL));
    WAIT(calls == 3);
    CHECK(F(IOF_push)(&all, 1, &bo, &end, 1, NULL, NULL));
    F(Value_destruct)(&info[0].value);

    /* The end of the job comes after all bytes and the ends of all streams. */
    WAIT(job_ended == 1);
    assert(bytes == so_far + ranks * strlen("got hello\n"));
    assert(ends == 2 * (size_t)ranks);
    volatile int status = 0;
    CHECK(F(IOF_push)(&all, 1, &bo, &end, 1, refused, (void *)&status));
    WAIT(status < 0);
    assert(registered == 1);
    CHECK(F(Deregister_event_handler)(id, done, (void *)&calls));
    WAIT(calls == 4);
    CHECK(F(tool_finalize)());
    assert(F(Initialized)());
    CHECK(F(tool_finalize)());
    assert(!F(Initialized)() && F(tool_finalize)() == C(ERR_INIT));
    printf("bytes %zu ends %zu\n", bytes, ends);
    return 0;
}
