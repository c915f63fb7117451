/* A debugger of PMIx, which spawns daemons beside the job that it debugs.
 *
 * daemons JOB KEY NUMBER   spawns itself as daemons for a job, as many as this key, such as
 *                          pmix.dbg.dpnd, specifies; writes their output, and waits for their end
 * daemons                  is a daemon: the processes that it debugs, and their output until its end
 */
#include "wait.h"

#include <stdlib.h>
#include <string.h>

static unsigned complete;
static int ended;
static char nspace[PMIX_MAX_NSLEN + 1];

static void on_output(size_t handler, pmix_iof_channel_t channel, pmix_proc_t *source, pmix_byte_object_t *payload,
                      pmix_info_t *infos, size_t count) {
    (void) handler, (void) channel;
    pthread_mutex_lock(&lock);
    for (size_t n = 0; n < count; n++) {
        complete += strcmp(infos[n].key, PMIX_IOF_COMPLETE) == 0;
    }
    if (payload != NULL && payload->size > 0) {
        printf("%s %u: %.*s", source->nspace, source->rank, (int) payload->size, payload->bytes);
        fflush(stdout);
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void on_event(size_t handler, pmix_status_t status, const pmix_proc_t *source, pmix_info_t *infos, size_t count,
                     pmix_info_t *results, size_t result_count, pmix_event_notification_cbfunc_fn_t done, void *data) {
    (void) handler, (void) status, (void) infos, (void) count, (void) results, (void) result_count;
    pthread_mutex_lock(&lock);
    ended |= strcmp(source->nspace, nspace) == 0;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (done != NULL) {
        done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, data);
    }
}

static void debug(const char *job, const char *key, uint16_t number) {
    pmix_status_t code = PMIX_EVENT_JOB_END;
    pmix_info_t infos[5];
    pmix_app_t *app;
    pmix_proc_t target;
    bool yes = true;
    char program[1000] = "";
    check(readlink("/proc/self/exe", program, sizeof program - 1) < 0 ? PMIX_ERROR : PMIX_SUCCESS, "program");
    PMIx_Register_event_handler(&code, 1, NULL, 0, on_event, on_registered, NULL);
    wait_until(&registered);
    PMIX_LOAD_PROCID(&target, job, PMIX_RANK_WILDCARD);
    PMIX_INFO_LOAD(&infos[0], PMIX_DEBUGGER_DAEMONS, &yes, PMIX_BOOL);
    PMIX_INFO_LOAD(&infos[1], PMIX_DEBUG_TARGET, &target, PMIX_PROC);
    PMIX_INFO_LOAD(&infos[2], key, &number, PMIX_UINT16);
    PMIX_INFO_LOAD(&infos[3], PMIX_FWD_STDOUT, &yes, PMIX_BOOL);
    PMIX_INFO_LOAD(&infos[4], PMIX_NOTIFY_COMPLETION, &yes, PMIX_BOOL);
    PMIX_APP_CREATE(app, 1);
    app->cmd = strdup(program);
    app->maxprocs = 1;
    pthread_mutex_lock(&lock);
    check(PMIx_Spawn(infos, 5, app, 1, nspace), "spawn");
    pthread_mutex_unlock(&lock);
    wait_until(&ended);
}

static void be_daemon(const pmix_proc_t *self) {
    pmix_proc_t own = *self, target;
    pmix_value_t *value;
    pmix_query_t *query;
    pmix_info_t *found = NULL;
    size_t count = 0;
    own.rank = PMIX_RANK_WILDCARD;
    check(PMIx_Get(&own, PMIX_DEBUG_TARGET, NULL, 0, &value), "target");
    target = *value->data.proc;
    printf("daemon %u of %s\n", self->rank, target.nspace);
    PMIX_QUERY_CREATE(query, 1);
    query->keys = calloc(2, sizeof *query->keys);
    query->keys[0] = strdup(PMIX_QUERY_LOCAL_PROC_TABLE);
    PMIX_QUERY_QUALIFIERS_CREATE(query, 1);
    PMIX_INFO_LOAD(&query->qualifiers[0], PMIX_NSPACE, target.nspace, PMIX_STRING);
    check(PMIx_Query_info(query, 1, &found, &count), "query");
    pmix_proc_info_t *procs = found[0].value.data.darray->array;
    count = found[0].value.data.darray->size;
    for (size_t n = 0; n < count; n++) {
        printf("proc %u %d\n", procs[n].proc.rank, procs[n].pid);
    }
    fflush(stdout);
    pmix_status_t id = PMIx_IOF_pull(&target, 1, NULL, 0, PMIX_FWD_STDOUT_CHANNEL, on_output, NULL, NULL);
    check(id < 0 ? id : PMIX_SUCCESS, "pull");
    pthread_mutex_lock(&lock);
    while (complete < count) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
}

int main(int argc, char **argv) {
    pmix_proc_t self;
    pmix_info_t info;
    alarm(60);
    if (argc > 1) {
        PMIX_INFO_LOAD(&info, PMIX_SERVER_NSPACE, argv[1], PMIX_STRING);
        check(PMIx_tool_init(&self, &info, 1), "init");
        debug(argv[1], argv[2], (uint16_t) atoi(argv[3]));
    } else {
        check(PMIx_tool_init(&self, NULL, 0), "init");
        be_daemon(&self);
    }
    return PMIx_tool_finalize() != PMIX_SUCCESS;
}
