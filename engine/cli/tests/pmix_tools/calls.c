/* Calls functions of PMIx one after the other, as a rank or as a tool, and prints the status of each.
 *
 * calls rank|JOB NAME...
 *
 * The functions concern all ranks of the job. A call that does not return within 10 s ends the
 * program. */
#include <pmix_tool.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pmix_proc_t self, ranks;
static bool yes = true;

static pmix_status_t logged(const char *channel, bool required) {
    pmix_info_t info;
    PMIX_INFO_LOAD(&info, channel, "text\n", PMIX_STRING);
    if (required) {
        PMIX_INFO_REQUIRED(&info);
    }
    return PMIx_Log(&info, 1, NULL, 0);
}

/* Logs to stdout and stderr with a directive that is true. */
static pmix_status_t logged_with(const char *directive, const char *text) {
    pmix_info_t data[2], info;
    PMIX_INFO_LOAD(&data[0], PMIX_LOG_STDOUT, text, PMIX_STRING);
    PMIX_INFO_LOAD(&data[1], PMIX_LOG_STDERR, text, PMIX_STRING);
    PMIX_INFO_LOAD(&info, directive, &yes, PMIX_BOOL);
    return PMIx_Log(data, 2, &info, 1);
}

/* Succeeds if the table of processes has this one. */
static pmix_status_t query_own(void) {
    pmix_query_t *query;
    pmix_info_t *found = NULL;
    size_t count = 0;
    PMIX_QUERY_CREATE(query, 1);
    query->keys = calloc(2, sizeof *query->keys);
    query->keys[0] = strdup(PMIX_QUERY_PROC_TABLE);
    PMIX_QUERY_QUALIFIERS_CREATE(query, 1);
    PMIX_INFO_LOAD(&query->qualifiers[0], PMIX_NSPACE, self.nspace, PMIX_STRING);
    pmix_status_t status = PMIx_Query_info(query, 1, &found, &count);
    if (status != PMIX_SUCCESS || count != 1) {
        return status;
    }
    pmix_proc_info_t *all = found[0].value.data.darray->array;
    for (size_t n = 0; n < found[0].value.data.darray->size; n++) {
        if (PMIX_CHECK_PROCID(&all[n].proc, &self) && all[n].pid == getpid()) {
            return PMIX_SUCCESS;
        }
    }
    return PMIX_ERR_NOT_FOUND;
}

static pmix_status_t query(const char *key, pmix_rank_t rank, pmix_data_type_t type) {
    pmix_query_t *query;
    pmix_info_t *found = NULL;
    size_t count = 0;
    PMIX_QUERY_CREATE(query, 1);
    query->keys = calloc(2, sizeof *query->keys);
    query->keys[0] = strdup(key);
    PMIX_QUERY_QUALIFIERS_CREATE(query, 2);
    PMIX_INFO_LOAD(&query->qualifiers[0], PMIX_NSPACE, ranks.nspace, PMIX_STRING);
    PMIX_INFO_LOAD(&query->qualifiers[1], PMIX_RANK, &rank, type);
    pmix_status_t status = PMIx_Query_info(query, 1, &found, &count);
    return status == PMIX_SUCCESS && count == 0 ? PMIX_ERR_NOT_FOUND : status;
}

/* Publishes a text, or 1 MiB if there is none, with up to two directives. */
static pmix_status_t published(const char *key, char *text, pmix_info_t *directives, size_t count) {
    static char bytes[1 << 20];
    pmix_byte_object_t object = {bytes, sizeof bytes};
    pmix_info_t infos[3];
    PMIX_INFO_LOAD(&infos[0], key, text ? (void *)text : &object, text ? PMIX_STRING : PMIX_BYTE_OBJECT);
    for (size_t n = 0; n < count; n++) {
        infos[n + 1] = directives[n];
    }
    return PMIx_Publish(infos, count + 1);
}

/* Looks up a key, and waits for it for some seconds unless they are negative. Succeeds if the value is
 * this text. */
static pmix_status_t looked_up(const char *key, const char *text, int seconds, pmix_rank_t source) {
    pmix_pdata_t data;
    pmix_info_t infos[2];
    PMIX_PDATA_CONSTRUCT(&data);
    PMIX_LOAD_KEY(data.key, key);
    PMIX_INFO_LOAD(&infos[0], PMIX_WAIT, &yes, PMIX_BOOL);
    PMIX_INFO_LOAD(&infos[1], PMIX_TIMEOUT, &seconds, PMIX_INT);
    pmix_status_t status = PMIx_Lookup(&data, 1, infos, seconds < 0 ? 0 : 2);
    if (status != PMIX_SUCCESS) {
        return status;
    }
    bool is_it = data.value.type == PMIX_STRING && strcmp(data.value.data.string, text) == 0 &&
                 PMIX_CHECK_NSPACE(data.proc.nspace, self.nspace) && data.proc.rank == source;
    return is_it ? PMIX_SUCCESS : PMIX_ERR_DATA_VALUE_NOT_FOUND;
}

/* Publishes for the next rank, and waits for the value of the one before, which is read once. */
static pmix_status_t exchanged(void) {
    uint32_t size = 0;
    pmix_value_t *value;
    char own[32], key[32];
    pmix_persistence_t once = PMIX_PERSIST_FIRST_READ;
    pmix_data_range_t job = PMIX_RANGE_NAMESPACE;
    pmix_info_t directives[2];
    if (PMIx_Get(&ranks, PMIX_JOB_SIZE, NULL, 0, &value) == PMIX_SUCCESS) {
        size = value->data.uint32;
    }
    pmix_rank_t before = (self.rank + size - 1) % size;
    PMIX_INFO_LOAD(&directives[0], PMIX_PERSISTENCE, &once, PMIX_PERSIST);
    PMIX_INFO_LOAD(&directives[1], PMIX_RANGE, &job, PMIX_DATA_RANGE);
    snprintf(own, sizeof own, "from-%u", self.rank);
    snprintf(key, sizeof key, "from-%u", before);
    usleep(self.rank * 20000);
    pmix_status_t status = published(own, own, directives, 2);
    if (status == PMIX_SUCCESS) {
        status = looked_up(key, key, 9, before);
    }
    return status == PMIX_SUCCESS && looked_up(key, key, -1, before) != PMIX_ERR_NOT_FOUND ? PMIX_ERROR : status;
}

/* Publishes until that is refused, and removes it all. */
static pmix_status_t published_endlessly(void) {
    char key[32];
    pmix_data_range_t own = PMIX_RANGE_PROC_LOCAL;
    pmix_status_t status = PMIX_SUCCESS;
    pmix_info_t info;
    PMIX_INFO_LOAD(&info, PMIX_RANGE, &own, PMIX_DATA_RANGE);
    for (int n = 0; status == PMIX_SUCCESS; n++) {
        snprintf(key, sizeof key, "endless-%d", n);
        status = published(key, NULL, &info, 1);
    }
    pmix_status_t removed = PMIx_Unpublish(NULL, &info, 1);
    return removed == PMIX_SUCCESS ? status : removed;
}

/* Looks up two keys, of which one is published. */
static pmix_status_t looked_up_partly(void) {
    pmix_pdata_t data[2];
    PMIX_PDATA_CONSTRUCT(&data[0]);
    PMIX_PDATA_CONSTRUCT(&data[1]);
    PMIX_LOAD_KEY(data[0].key, "nothing");
    PMIX_LOAD_KEY(data[1].key, "own");
    pmix_status_t status = PMIx_Lookup(data, 2, NULL, 0);
    bool is_it = data[0].value.type == PMIX_UNDEF && data[1].value.type == PMIX_STRING;
    return is_it ? status : PMIX_ERR_DATA_VALUE_NOT_FOUND;
}

/* Spawns a job of two ranks with this info, whose ranks call the function "parent". */
static pmix_status_t spawn(const char *program, const char *key, const char *text, char *nspace) {
    pmix_app_t *app;
    pmix_info_t info;
    PMIX_INFO_LOAD(&info, key, text, PMIX_STRING);
    PMIX_APP_CREATE(app, 1);
    app->cmd = strdup(program);
    app->argv = calloc(4, sizeof *app->argv);
    app->argv[0] = strdup(program);
    app->argv[1] = strdup("rank");
    app->argv[2] = strdup("parent");
    app->env = calloc(2, sizeof *app->env);
    app->env[0] = strdup("COLOUR=blue=green");
    app->maxprocs = 2;
    return PMIx_Spawn(&info, 1, app, 1, nspace);
}

/* Spawns a job of so many ranks with one info. */
static pmix_status_t spawn_with(const char *key, const void *value, pmix_data_type_t type, int count) {
    pmix_app_t app = {.cmd = "true", .maxprocs = count};
    pmix_info_t info;
    char nspace[PMIX_MAX_NSLEN + 1];
    PMIX_INFO_LOAD(&info, key, value, type);
    return PMIx_Spawn(&info, 1, &app, 1, nspace);
}

/* Spawns a job, which goes on without this one, that prints variables. They are changed by infos of the job, and
 * the last one by an info of its program. */
static pmix_status_t spawn_with_variables(void) {
    static const struct {
        const char *key;
        pmix_envar_t variable;
    } changes[] = {
        {PMIX_APPEND_ENVAR, {"SHADE", "er", '-'}},
        {PMIX_PREPEND_ENVAR, {"COLOUR", "red", ':'}}, {PMIX_APPEND_ENVAR, {"COLOUR", "green", ':'}},
        {PMIX_ADD_ENVAR, {"COLOUR", "none", ':'}},    {PMIX_SET_ENVAR, {"SHADE", "dark", ':'}},
        {PMIX_ADD_ENVAR, {"LIGHT", "on", ':'}},       {PMIX_PREPEND_ENVAR, {"TMPDIR", "first", ':'}},
    };
    enum { COUNT = sizeof changes / sizeof *changes };
    char *words[] = {"sh", "-c", "printf '%s %s %s %.7s\\n' $COLOUR $SHADE $LIGHT $TMPDIR", NULL};
    char *variables[] = {"COLOUR=blue", NULL}, nspace[PMIX_MAX_NSLEN + 1];
    pmix_info_t infos[COUNT + 1];
    PMIX_INFO_LOAD(&infos[COUNT], PMIX_NOHUP, &yes, PMIX_BOOL);
    for (int n = 0; n < COUNT; n++) PMIX_INFO_LOAD(&infos[n], changes[n].key, &changes[n].variable, PMIX_ENVAR);
    pmix_app_t app = {.cmd = "sh", .argv = words, .env = variables, .maxprocs = 1, .info = infos, .ninfo = 1};
    return PMIx_Spawn(infos + 1, COUNT, &app, 1, nspace);
}

/* Connects all ranks of a job to another one, or to one of its ranks. */
static pmix_status_t connected(const char *parent, const char *child, pmix_rank_t rank) {
    pmix_proc_t procs[2];
    PMIX_LOAD_PROCID(&procs[0], parent, PMIX_RANK_WILDCARD);
    PMIX_LOAD_PROCID(&procs[1], child, rank);
    return PMIx_Connect(procs, 2, NULL, 0);
}

/* Rank 0 spawns a job, and all ranks of both jobs connect. */
static pmix_status_t spawned(void) {
    char program[1000] = "", nspace[PMIX_MAX_NSLEN + 1];
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0) return PMIX_ERROR;
    pmix_status_t status = spawn(program, PMIX_WDIR, "/", nspace);
    return status == PMIX_SUCCESS ? connected(self.nspace, nspace, PMIX_RANK_WILDCARD) : status;
}

/* Connects to the job that has spawned this one. */
static pmix_status_t parent(void) {
    char directory[1000];
    const char *colour = getenv("COLOUR");
    pmix_value_t *value, *is_spawned;
    pmix_proc_t own;
    PMIX_LOAD_PROCID(&own, self.nspace, PMIX_RANK_WILDCARD);
    bool is_right = PMIx_Get(&own, PMIX_PARENT_ID, NULL, 0, &value) == PMIX_SUCCESS && value->type == PMIX_PROC &&
                    value->data.proc->rank == 0 && PMIx_Get(&own, PMIX_SPAWNED, NULL, 0, &is_spawned) == PMIX_SUCCESS &&
                    is_spawned->data.flag && colour && strcmp(colour, "blue=green") == 0 &&
                    getcwd(directory, sizeof directory) && strcmp(directory, "/") == 0;
    if (!is_right) return PMIX_ERR_DATA_VALUE_NOT_FOUND;
    return connected(value->data.proc->nspace, self.nspace, PMIX_RANK_WILDCARD);
}

static pmix_status_t construct_group(bool context) {
    pmix_info_t info, *results = NULL;
    size_t count = 0;
    PMIX_INFO_LOAD(&info, PMIX_GROUP_ASSIGN_CONTEXT_ID, &yes, PMIX_BOOL);
    return PMIx_Group_construct("group", &ranks, 1, &info, context, &results, &count);
}

/* Constructs a group of all ranks that has a number, finds its name, and destructs it. Prints the number. */
static pmix_status_t grouped(const char *name) {
    pmix_info_t info, *results = NULL;
    size_t count = 0, context = 0;
    PMIX_INFO_LOAD(&info, PMIX_GROUP_ASSIGN_CONTEXT_ID, &yes, PMIX_BOOL);
    pmix_status_t status = PMIx_Group_construct(name, &ranks, 1, &info, 1, &results, &count);
    if (status != PMIX_SUCCESS) {
        return status;
    }
    for (size_t n = 0; n < count; n++) {
        if (PMIX_CHECK_KEY(&results[n], PMIX_GROUP_CONTEXT_ID) && results[n].value.type == PMIX_SIZE) {
            context = results[n].value.data.size;
        }
    }
    printf("context %zu\n", context);
    pmix_query_t *query;
    pmix_info_t *found = NULL;
    PMIX_QUERY_CREATE(query, 1);
    query->keys = calloc(2, sizeof *query->keys);
    query->keys[0] = strdup(PMIX_QUERY_GROUP_NAMES);
    status = PMIx_Query_info(query, 1, &found, &count);
    if (status == PMIX_SUCCESS) {
        char **names = count == 1 ? found[0].value.data.darray->array : NULL;
        if (!names || found[0].value.data.darray->size != 1 || strcmp(names[0], name) != 0) {
            return PMIX_ERR_NOT_FOUND;
        }
        /* Until all have asked. */
        status = PMIx_Fence(&ranks, 1, NULL, 0);
    }
    return status == PMIX_SUCCESS ? PMIx_Group_destruct(name, NULL, 0) : status;
}

/* Constructs a group with a process that does not exist. */
static pmix_status_t grouped_with(const char *nspace, pmix_rank_t rank) {
    pmix_proc_t members[2] = {self};
    pmix_info_t *results = NULL;
    size_t count = 0;
    char name[32];
    snprintf(name, sizeof name, "stranger-%u", self.rank);
    PMIX_LOAD_PROCID(&members[1], nspace, rank);
    return PMIx_Group_construct(name, members, 2, NULL, 0, &results, &count);
}

/* Constructs a group of all ranks that has a number, with a required directive. */
static pmix_status_t group_requires(const char *key) {
    pmix_info_t infos[2], *results = NULL;
    size_t count = 0;
    PMIX_INFO_LOAD(&infos[0], PMIX_GROUP_ASSIGN_CONTEXT_ID, &yes, PMIX_BOOL);
    PMIX_INFO_LOAD(&infos[1], key, &yes, PMIX_BOOL);
    PMIX_INFO_REQUIRED(&infos[1]);
    return PMIx_Group_construct(key, &ranks, 1, infos, 2, &results, &count);
}

/* Constructs groups of this rank alone until that is refused to all ranks, and destructs some. A rank that
 * destructed while others construct would make room for thousands of further ones. */
static pmix_status_t grouped_endlessly(void) {
    char name[32];
    pmix_info_t *results = NULL;
    size_t count = 0;
    pmix_status_t status = PMIX_SUCCESS, removed;
    int groups = -1;
    while (status == PMIX_SUCCESS) {
        alarm(10);
        snprintf(name, sizeof name, "own-%u-%d", self.rank, ++groups);
        status = PMIx_Group_construct(name, &self, 1, NULL, 0, &results, &count);
    }
    alarm(50);
    removed = PMIx_Fence(&ranks, 1, NULL, 0);
    for (int n = 0; removed == PMIX_SUCCESS && n < 100 && n < groups; n++) {
        alarm(10);
        snprintf(name, sizeof name, "own-%u-%d", self.rank, n);
        removed = PMIx_Group_destruct(name, NULL, 0);
    }
    return removed == PMIX_SUCCESS ? status : removed;
}

static void group_constructed(pmix_status_t status, pmix_info_t *results, size_t count, void *data,
                              pmix_release_cbfunc_t release, void *release_data) {
    (void)status, (void)results, (void)count, (void)data;
    if (release) {
        release(release_data);
    }
}

/* Begins groups of all ranks that no other rank joins. */
static pmix_status_t group_alone(void) {
    char name[32];
    pmix_status_t status = PMIX_SUCCESS;
    for (int n = 0; status == PMIX_SUCCESS && n < 200; n++) {
        snprintf(name, sizeof name, "alone-%u-%d", self.rank, n);
        status = PMIx_Group_construct_nb(name, &ranks, 1, NULL, 0, group_constructed, NULL);
    }
    return status;
}

static pmix_status_t control(const char *key, const void *value, pmix_data_type_t type) {
    pmix_info_t info, *results = NULL;
    size_t count = 0;
    PMIX_INFO_LOAD(&info, key, value, type);
    return PMIx_Job_control(&ranks, 1, &info, 1, &results, &count);
}

static volatile sig_atomic_t signals;

static void count_signal(int number) {
    (void)number;
    signals++;
}

/* Rank 0 sends all ranks of its job a signal, for which each waits. */
static pmix_status_t signal_own(void) {
    pmix_info_t info, *results = NULL;
    size_t count = 0;
    int number = SIGUSR1;
    signal(SIGUSR1, count_signal);
    pmix_status_t status = PMIx_Fence(&ranks, 1, NULL, 0);
    if (status == PMIX_SUCCESS && self.rank == 0) {
        PMIX_INFO_LOAD(&info, PMIX_JOB_CTRL_SIGNAL, &number, PMIX_INT);
        status = PMIx_Job_control(NULL, 0, &info, 1, &results, &count);
    }
    while (status == PMIX_SUCCESS && signals == 0) {
        usleep(1000);
    }
    return status;
}

static pmix_status_t got(const pmix_proc_t *proc, const char *key, pmix_data_type_t type) {
    pmix_value_t *value;
    pmix_status_t status = PMIx_Get(proc, key, NULL, 0, &value);
    return status == PMIX_SUCCESS && value->type != type ? PMIX_ERR_TYPE_MISMATCH : status;
}

/* Succeeds if every rank of the job has a pid, and this one its own. */
static pmix_status_t got_pids(void) {
    pmix_value_t *value;
    pmix_proc_t proc = ranks;
    if (PMIx_Get(&ranks, PMIX_JOB_SIZE, NULL, 0, &value) != PMIX_SUCCESS) return PMIX_ERR_INIT;
    uint32_t size = value->data.uint32;
    for (proc.rank = 0; proc.rank < size; proc.rank++) {
        pmix_status_t status = PMIx_Get(&proc, PMIX_PROC_PID, NULL, 0, &value);
        if (status != PMIX_SUCCESS) return status;
        bool is_it = proc.rank == self.rank ? value->data.pid == getpid() : kill(value->data.pid, 0) == 0;
        if (value->type != PMIX_PID || !is_it) return PMIX_ERR_TYPE_MISMATCH;
    }
    return PMIx_Fence(&ranks, 1, NULL, 0);
}

#define EVENT (PMIX_EXTERNAL_ERR_BASE - 7)
static volatile int events, has_handler;

static void on_event(size_t handler, pmix_status_t status, const pmix_proc_t *source, pmix_info_t *infos, size_t count,
                     pmix_info_t *results, size_t result_count, pmix_event_notification_cbfunc_fn_t done, void *data) {
    (void)handler, (void)status, (void)infos, (void)count, (void)results, (void)result_count;
    events += source->rank == 0;
    done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, data);
}

static void on_handler(pmix_status_t status, size_t id, void *data) {
    (void)id, (void)data;
    has_handler = status == PMIX_SUCCESS;
}

/* Registers for one event, and waits for the answer. */
static pmix_status_t registered(pmix_status_t code) {
    pmix_status_t status = PMIx_Register_event_handler(&code, 1, NULL, 0, on_event, NULL, NULL);
    /* Otherwise the number of the handler. libpmix 4.2.2 has an error of its own for a refusal. */
    return status < 0 ? PMIX_ERR_NOT_SUPPORTED : PMIX_SUCCESS;
}

/* Rank 0 notifies the ranks of this range, of which a custom one is rank 1 alone, and then all of the
 * job. Each waits for those that concern it, and must have no others. */
static pmix_status_t notified(pmix_data_range_t range) {
    pmix_status_t code = EVENT, status;
    pmix_proc_t target = ranks;
    pmix_info_t info;
    pmix_data_array_t targets = {PMIX_PROC, 1, &target};
    target.rank = 1;
    if (!has_handler) PMIx_Register_event_handler(&code, 1, NULL, 0, on_event, on_handler, NULL);
    while (!has_handler) usleep(1000);
    events = 0;
    status = PMIx_Fence(&ranks, 1, NULL, 0);
    if (status == PMIX_SUCCESS && self.rank == 0) {
        PMIX_INFO_LOAD(&info, PMIX_EVENT_CUSTOM_RANGE, &targets, PMIX_DATA_ARRAY);
        status = PMIx_Notify_event(EVENT, &self, range, &info, range == PMIX_RANGE_CUSTOM, NULL, NULL);
        if (status == PMIX_SUCCESS || status == PMIX_OPERATION_SUCCEEDED)
            status = PMIx_Notify_event(EVENT, &self, PMIX_RANGE_NAMESPACE, NULL, 0, NULL, NULL);
    }
    int expected = range == PMIX_RANGE_CUSTOM && self.rank != 1 ? 1 : 2;
    while (self.rank > 0 && status == PMIX_SUCCESS && events < expected) usleep(1000);
    if (self.rank > 0 && events != expected) status = PMIX_ERR_OUT_OF_RESOURCE;
    pmix_status_t left = PMIx_Fence(&ranks, 1, NULL, 0);
    return status == PMIX_OPERATION_SUCCEEDED || status == PMIX_SUCCESS ? left : status;
}

static volatile pmix_status_t refusal = PMIX_SUCCESS;

static void on_notified(pmix_status_t status, void *data) {
    (void)data;
    if (status != PMIX_SUCCESS) refusal = status;
}

/* libpmix 4 calls back twice: with the result of its own handlers, and with the server's answer. */
static pmix_status_t notify_refused(void) {
    pmix_status_t status = PMIx_Notify_event(EVENT, &self, PMIX_RANGE_GLOBAL, NULL, 0, on_notified, NULL);
    if (status != PMIX_SUCCESS) return status;
    while (refusal == PMIX_SUCCESS) usleep(1000);
    return refusal;
}

static pmix_status_t monitor(void) {
    pmix_info_t info, directive, *results = NULL;
    size_t count = 0;
    uint32_t seconds = 5;
    PMIX_INFO_LOAD(&info, PMIX_MONITOR_HEARTBEAT, &yes, PMIX_BOOL);
    PMIX_INFO_LOAD(&directive, PMIX_MONITOR_HEARTBEAT_TIME, &seconds, PMIX_UINT32);
    return PMIx_Process_monitor(&info, PMIX_MONITOR_HEARTBEAT_ALERT, &directive, 1, &results, &count);
}

static pmix_status_t call(const char *name) {
    pmix_info_t info, *results = NULL;
    pmix_pdata_t data;
    pmix_value_t *value;
    pmix_byte_object_t credential = {"x", 1};
    size_t count = 0;
    char *keys[] = {"key", NULL}, *own[] = {"own", NULL};
    pmix_data_range_t range = PMIX_RANGE_PROC_LOCAL;
    uint64_t nodes = 1;
    int number = 7, signal = 10, below = -1;
#define IS(other) (strcmp(name, other) == 0)
    if (IS("log-stdout")) return logged(PMIX_LOG_STDOUT, false);
    if (IS("log-stderr")) return logged(PMIX_LOG_STDERR, true);
    if (IS("log-unknown")) return logged("pmix.log.nothing", true);
    if (IS("log-number")) {
        PMIX_INFO_LOAD(&info, "pmix.log.nothing", &number, PMIX_INT);
        return PMIx_Log(&info, 1, NULL, 0);
    }
    if (IS("log-huge")) {
        char *text = malloc(16 << 20);
        memset(text, 'x', 16 << 20);
        text[(16 << 20) - 1] = 0;
        PMIX_INFO_LOAD(&info, PMIX_LOG_STDERR, text, PMIX_STRING);
        return PMIx_Log(&info, 1, NULL, 0);
    }
    if (IS("log-once")) return logged_with(PMIX_LOG_ONCE, "once\n");
    if (IS("log-tagged")) return logged_with(PMIX_LOG_TAG_OUTPUT, "tagged\n");
    if (IS("query-own")) return query_own();
    if (IS("query")) return query(PMIX_QUERY_PROC_TABLE, PMIX_RANK_WILDCARD, PMIX_PROC_RANK);
    if (IS("query-signed")) return query(PMIX_QUERY_PROC_TABLE, PMIX_RANK_WILDCARD, PMIX_INT32);
    if (IS("signal-own")) return signal_own();
    if (IS("get-local-procs")) return got(&ranks, PMIX_LOCAL_PROCS, PMIX_DATA_ARRAY);
    if (IS("get-mapby")) return got(&ranks, PMIX_MAPBY, PMIX_STRING);
    if (IS("get-bindto")) return got(&ranks, PMIX_BINDTO, PMIX_STRING);
    if (IS("get-reincarnation")) return got(&self, PMIX_REINCARNATION, PMIX_UINT32);
    if (IS("get-pids")) return got_pids();
    if (IS("notify-refused")) return notify_refused();
    if (IS("notify-job")) return notified(PMIX_RANGE_NAMESPACE);
    if (IS("notify-local")) return notified(PMIX_RANGE_LOCAL);
    if (IS("notify-global")) return notified(PMIX_RANGE_GLOBAL);
    if (IS("notify-custom")) return notified(PMIX_RANGE_CUSTOM);
    if (IS("grouped")) return grouped("first");
    if (IS("grouped-again")) return grouped("second");
    if (IS("group-notified")) return group_requires(PMIX_GROUP_NOTIFY_TERMINATION);
    if (IS("group-with-stranger")) return grouped_with("none", 0);
    if (IS("group-with-missing-rank")) return grouped_with(self.nspace, 99);
    if (IS("group-unknown")) return group_requires("vendor.colour");
    if (IS("event-node")) return registered(PMIX_EVENT_NODE_DOWN);
    if (IS("event-job")) return registered(PMIX_EVENT_JOB_END);
    if (IS("group-endlessly")) return grouped_endlessly();
    if (IS("group-alone")) return group_alone();
    if (IS("group")) return construct_group(false);
    if (IS("group-context")) return construct_group(true);
    if (IS("publish")) {
        PMIX_INFO_LOAD(&info, "key", "value", PMIX_STRING);
        return PMIx_Publish(&info, 1);
    }
    if (IS("lookup")) {
        PMIX_PDATA_CONSTRUCT(&data);
        PMIX_LOAD_KEY(data.key, "key");
        return PMIx_Lookup(&data, 1, NULL, 0);
    }
    if (IS("unpublish")) return PMIx_Unpublish(keys, NULL, 0);
    PMIX_INFO_LOAD(&info, PMIX_RANGE, &range, PMIX_DATA_RANGE);
    if (IS("publish-own") || IS("publish-twice")) return published("own", "text", &info, 1);
    if (IS("lookup-own")) return looked_up("own", "text", -1, self.rank);
    if (IS("lookup-partly")) return looked_up_partly();
    if (IS("unpublish-own") || IS("unpublish-none")) return PMIx_Unpublish(own, &info, 1);
    if (IS("lookup-late")) return looked_up("nothing", "", 1, self.rank);
    if (IS("exchange")) return exchanged();
    if (IS("publish-endlessly")) return published_endlessly();
    char nspace[PMIX_MAX_NSLEN + 1];
    if (IS("spawn")) return spawn("true", PMIX_WDIR, "/", nspace);
    if (IS("spawn-missing")) return spawn("/missing", PMIX_WDIR, "/", nspace);
    if (IS("spawn-elsewhere")) return spawn("true", PMIX_HOST, "elsewhere", nspace);
    if (IS("spawn-unknown")) return spawn("true", "vendor.colour", "blue", nspace);
    if (IS("spawn-child")) return spawned();
    if (IS("spawn-stopped")) return spawn("true", PMIX_DEBUG_STOP_IN_INIT, "all", nspace);
    if (IS("spawn-stopped-on-exec")) return spawn("true", PMIX_DEBUG_STOP_ON_EXEC, "all", nspace);
    if (IS("spawn-by-node")) return spawn("true", PMIX_PPR, "1:node", nspace);
    if (IS("spawn-with-variables")) return spawn_with_variables();
    if (IS("spawn-without-variable")) return spawn("true", PMIX_UNSET_ENVAR, "COLOUR", nspace);
    if (IS("spawn-timed")) return spawn_with(PMIX_TIMEOUT, &number, PMIX_INT, 1);
    if (IS("spawn-in-number")) return spawn_with(PMIX_WDIR, &number, PMIX_INT, 1);
    if (IS("spawn-named-by-number")) return spawn_with(PMIX_NSPACE, &number, PMIX_INT, 1);
    if (IS("spawn-cached-by-text")) return spawn_with(PMIX_IOF_CACHE_SIZE, "much", PMIX_STRING, 1);
    if (IS("spawn-below-zero")) return spawn_with(PMIX_JOB_TIMEOUT, &below, PMIX_INT, 1);
    if (IS("spawn-changed-by-text")) return spawn_with(PMIX_SET_ENVAR, "COLOUR=blue", PMIX_STRING, 1);
    if (IS("spawn-no-ranks")) return spawn_with(PMIX_WDIR, "/", PMIX_STRING, 0);
    if (IS("spawn-negative-ranks")) return spawn_with(PMIX_WDIR, "/", PMIX_STRING, -1);
    if (IS("spawn-inheriting")) return spawn("true", "pmix.iof.inhrt", "yes", nspace);
    if (IS("spawn-daemons")) return spawn("true", "pmix.dbg.job", ranks.nspace, nspace);
    if (IS("spawn-daemons-of-none")) return spawn("true", "pmix.dbg.job", "none", nspace);
    if (IS("parent")) return parent();
    if (IS("connect-to-stranger")) return connected(self.nspace, "none", 0);
    if (IS("connect-to-missing-rank")) return connected(self.nspace, self.nspace, 99);
    if (IS("connect")) return PMIx_Connect(&ranks, 1, NULL, 0);
    if (IS("disconnect")) return PMIx_Disconnect(&ranks, 1, NULL, 0);
    if (IS("terminate")) return control(PMIX_JOB_CTRL_TERMINATE, &yes, PMIX_BOOL);
    if (IS("signal")) return control(PMIX_JOB_CTRL_SIGNAL, &signal, PMIX_INT);
    if (IS("checkpoint")) return control(PMIX_JOB_CTRL_CHECKPOINT, "id", PMIX_STRING);
    if (IS("cleanup")) return control(PMIX_REGISTER_CLEANUP, "/nonexistent/file", PMIX_STRING);
    if (IS("terminate-none")) {
        PMIX_LOAD_PROCID(&ranks, "none", PMIX_RANK_WILDCARD);
        return control(PMIX_JOB_CTRL_TERMINATE, &yes, PMIX_BOOL);
    }
    if (IS("get-none")) {
        PMIX_LOAD_PROCID(&ranks, "none", 0);
        return PMIx_Get(&ranks, "key", NULL, 0, &value);
    }
    if (IS("monitor")) return monitor();
    if (IS("allocate")) {
        PMIX_INFO_LOAD(&info, PMIX_ALLOC_NUM_NODES, &nodes, PMIX_UINT64);
        return PMIx_Allocation_request(PMIX_ALLOC_NEW, &info, 1, &results, &count);
    }
    if (IS("credential")) return PMIx_Get_credential(NULL, 0, &credential);
    if (IS("validate")) return PMIx_Validate_credential(&credential, NULL, 0, &results, &count);
    if (IS("fence")) return PMIx_Fence(&ranks, 1, NULL, 0);
    if (IS("fence-own")) return PMIx_Fence(NULL, 0, NULL, 0);
    if (IS("get")) return PMIx_Get(&ranks, PMIX_JOB_SIZE, NULL, 0, &value);
    if (IS("abort")) return PMIx_Abort(5, "text", &ranks, 1);
    return PMIX_ERR_INIT;
}

int main(int argc, char **argv) {
    pmix_info_t info;
    bool is_rank = strcmp(argv[1], "rank") == 0;
    alarm(10);
    PMIX_INFO_LOAD(&info, PMIX_SERVER_NSPACE, argv[1], PMIX_STRING);
    if ((is_rank ? PMIx_Init(&self, NULL, 0) : PMIx_tool_init(&self, &info, 1)) != PMIX_SUCCESS) {
        return 3;
    }
    PMIX_LOAD_PROCID(&ranks, is_rank ? self.nspace : argv[1], PMIX_RANK_WILDCARD);
    for (int n = 2; n < argc; n++) {
        alarm(10);
        printf("%s %d\n", argv[n], call(argv[n]));
        fflush(stdout);
    }
    return (is_rank ? PMIx_Finalize(NULL, 0) : PMIx_tool_finalize()) != PMIX_SUCCESS;
}
