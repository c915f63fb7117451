/* Launchers with directives, queries, log channels and a gateway of their own, and with control
 * of their jobs' streams. The first argument selects the scenario. */
#define _GNU_SOURCE
#include <assert.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iof.h>

#include "check.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char received[65536];
static int ends, pulls;
static char logged_text[1024];
static iof_proc_t all;

static void output(size_t id, iof_iof_channel_t channel, iof_proc_t *source, iof_byte_object_t *payload,
                   iof_info_t *info, size_t ninfo)
{
    (void)id, (void)channel, (void)source;
    pthread_mutex_lock(&lock);
    strncat(received, payload->bytes ? payload->bytes : "", payload->size);
    for (size_t i = 0; i < ninfo; i++) {
        ends += IOF_CHECK_KEY(&info[i], IOF_IOF_COMPLETE);
    }
    pthread_mutex_unlock(&lock);
}

/* Returns whether all of these lines were received. */
static int has(const char *text)
{
    pthread_mutex_lock(&lock);
    int found = strstr(received, text) != NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

static iof_status_t pull(const iof_proc_t procs[], size_t nprocs, const iof_info_t directives[], size_t ndirs,
                         iof_iof_channel_t channels, iof_op_cbfunc_t cbfunc, void *cbdata)
{
    (void)procs, (void)nprocs, (void)channels, (void)cbfunc, (void)cbdata;
    if (ndirs == 1 && IOF_CHECK_KEY(&directives[0], "site.colour")) {
        assert(!strcmp(directives[0].value.data.string, "blue") && IOF_INFO_IS_REQUIRED(&directives[0]));
        pulls++;
    }
    return IOF_OPERATION_SUCCEEDED;
}

/* Knows a process on another node. */
static iof_status_t query(iof_proc_t *proct, iof_query_t *queries, size_t nqueries, iof_info_cbfunc_t cbfunc,
                          void *cbdata)
{
    (void)proct;
    assert(nqueries == 1 && !strcmp(queries[0].keys[0], IOF_QUERY_PROC_TABLE));
    iof_proc_info_t far = {.hostname = "far", .executable_name = "sh", .pid = 7, .state = IOF_PROC_STATE_RUNNING};
    iof_data_array_t array = {.type = IOF_PROC_INFO, .size = 1, .array = &far};
    iof_info_t info = {.value = {.type = IOF_DATA_ARRAY, .data.darray = &array}};
    IOF_LOAD_KEY(info.key, IOF_QUERY_PROC_TABLE);
    IOF_LOAD_PROCID(&far.proc, "job", 9);
    cbfunc(IOF_SUCCESS, &info, 1, cbdata, NULL, NULL);
    return IOF_SUCCESS;
}

static void logs(const iof_proc_t *client, const iof_info_t data[], size_t ndata, const iof_info_t directives[],
                 size_t ndirs, iof_op_cbfunc_t cbfunc, void *cbdata)
{
    (void)client, (void)directives, (void)ndirs;
    assert(ndata == 1);
    pthread_mutex_lock(&lock);
    snprintf(logged_text, sizeof logged_text, "%s=%s", data[0].key, data[0].value.data.string);
    pthread_mutex_unlock(&lock);
    cbfunc(IOF_SUCCESS, cbdata);
}

/* A tool that uses what its launcher has announced. */
static void tool(void)
{
    iof_info_t info;
    iof_proc_t self;
    CHECK(iof_tool_init(&self, NULL, 0));
    CHECK(iof_Info_load(&info, "site.colour", "blue", IOF_STRING));
    iof_Info_required(&info);
    CHECK(iof_IOF_pull(&all, 1, &info, 1, IOF_FWD_STDOUT_CHANNEL, output, NULL, NULL));
    iof_Value_destruct(&info.value);

    char *keys[] = {IOF_QUERY_PROC_TABLE, IOF_QUERY_LOG_CHANNELS, NULL};
    iof_query_t query = {.keys = keys};
    iof_info_t *results;
    size_t count;
    CHECK(iof_Query_info(&query, 1, &results, &count));
    assert(count == 2);
    iof_data_array_t *table = results[0].value.data.darray;
    iof_proc_info_t *procs = table->array;
    assert(table->type == IOF_PROC_INFO && table->size == 2);
    assert(procs[0].proc.rank == 0 && procs[0].pid != 7 && procs[1].proc.rank == 9 && procs[1].pid == 7);
    assert(strstr(results[1].value.data.string, "site.book"));
    iof_Info_free(results, count);

    /* Tools of PMIx give a rank as any kind of integer. */
    int32_t rank = 0;
    char *local[] = {IOF_QUERY_LOCAL_PROC_TABLE, NULL};
    iof_info_t qualifiers[2];
    CHECK(iof_Info_load(&qualifiers[0], IOF_NSPACE, "job", IOF_STRING));
    CHECK(iof_Info_load(&qualifiers[1], IOF_RANK, &rank, IOF_INT32));
    iof_query_t of_rank = {.keys = local, .qualifiers = qualifiers, .nqual = 2};
    CHECK(iof_Query_info(&of_rank, 1, &results, &count));
    table = results[0].value.data.darray;
    assert(table->size == 1 && ((iof_proc_info_t *)table->array)->proc.rank == 0);
    iof_Info_free(results, count);
    iof_Value_destruct(&qualifiers[0].value);

    CHECK(iof_Info_load(&info, IOF_LOG_MSG, "a note", IOF_STRING));
    CHECK(iof_Log(&info, 1, NULL, 0));
    iof_Value_destruct(&info.value);
    CHECK(iof_Info_load(&info, "site.far", "for the gateway", IOF_STRING));
    CHECK(iof_Log(&info, 1, NULL, 0));
    iof_Value_destruct(&info.value);
    CHECK(iof_tool_finalize());
}

/* A gateway, which ends when a message was logged. */
static void gateway(void)
{
    iof_server_module_t module = {.log = logs};
    iof_info_t infos[3];
    CHECK(iof_Info_load(&infos[0], IOF_SERVER_GATEWAY, NULL, IOF_BOOL));
    CHECK(iof_Info_load(&infos[1], IOF_HOST_LOG_CHANNELS, "site.far", IOF_STRING));
    CHECK(iof_Info_load(&infos[2], IOF_HOST_DIRECTIVES, IOF_LOG_SOURCE, IOF_STRING));
    CHECK(iof_server_init(&module, infos, 3));
    printf("%s\n", iof_server_uri());
    fflush(stdout);
    for (int done = 0; !done; poll(NULL, 0, 1)) {
        pthread_mutex_lock(&lock);
        done = !strcmp(logged_text, "site.far=for the gateway");
        pthread_mutex_unlock(&lock);
    }
    CHECK(iof_server_finalize());
}

static void spawn(iof_info_t *infos, size_t ninfos, iof_app_t *apps, size_t napps)
{
    iof_info_t all_infos[4];
    assert(ninfos <= 3);
    CHECK(iof_Info_load(&all_infos[0], IOF_NSPACE, "job", IOF_STRING));
    memcpy(all_infos + 1, infos, ninfos * sizeof *infos);
    CHECK(iof_IOF_pull(&all, 1, NULL, 0, IOF_FWD_STDOUT_CHANNEL | IOF_FWD_STDERR_CHANNEL, output, NULL, NULL));
    CHECK(iof_server_spawn(all_infos, ninfos + 1, apps, napps, NULL));
    iof_Value_destruct(&all_infos[0].value);
}

static iof_app_t shell(const char *script, int ranks)
{
    iof_app_t app = {.cmd = strdup("sh"), .maxprocs = ranks};
    iof_Argv_append_nosize(&app.argv, "sh");
    iof_Argv_append_nosize(&app.argv, "-c");
    iof_Argv_append_nosize(&app.argv, script);
    return app;
}

/* A launcher that announces directives, queries, log channels, their order and a gateway. */
static void host(void)
{
    iof_server_module_t module = {.iof_pull = pull, .query = query, .log = logs};
    iof_info_t infos[5];
    int pipes[2];
    char uri[256] = {0};
    assert(pipe2(pipes, O_CLOEXEC) == 0);
    pid_t gateway = start("gateway", pipes[1]);
    assert(read(pipes[0], uri, sizeof uri - 1) > 0);
    *strchr(uri, '\n') = 0;
    CHECK(iof_Info_load(&infos[0], IOF_HOST_DIRECTIVES, "site.colour,site.size", IOF_STRING));
    CHECK(iof_Info_load(&infos[1], IOF_HOST_QUERIES, IOF_QUERY_PROC_TABLE, IOF_STRING));
    CHECK(iof_Info_load(&infos[2], IOF_HOST_LOG_CHANNELS, "site.book", IOF_STRING));
    CHECK(iof_Info_load(&infos[3], IOF_LOG_ORDER, "site.book", IOF_STRING));
    CHECK(iof_Info_load(&infos[4], IOF_GATEWAY, uri, IOF_STRING));
    CHECK(iof_server_init(&module, infos, 5));
    iof_app_t app = shell("read line", 1);
    iof_rank_t rank = 0;
    CHECK(iof_Info_load(&infos[0], IOF_STDIN_TGT, &rank, IOF_PROC_RANK));
    spawn(infos, 1, &app, 1);
    ends_well(start("tool", -1));
    assert(pulls == 1 && !strcmp(logged_text, "site.book=a note"));
    ends_well(gateway);
    CHECK(iof_server_signal("job", 15));
    CHECK(iof_server_wait("job", NULL));
    IOF_APP_DESTRUCT(&app);
}

/* Grants the jobs "now" and "later", and no others. */
static iof_status_t grant(const iof_proc_t *proc, const iof_info_t infos[], size_t ninfos, const iof_app_t apps[],
                          size_t napps, iof_spawn_cbfunc_t cbfunc, void *cbdata)
{
    const char *name = infos[0].value.data.string;
    assert(*proc->nspace && IOF_CHECK_KEY(&infos[0], IOF_NSPACE) && napps == 2);
    assert(!strcmp(apps[0].cmd, "sh") && !strcmp(apps[0].argv[2], "exit 3") && !apps[0].argv[3] && apps[0].maxprocs == 2);
    assert(!strcmp(apps[0].env[0], "COLOUR=blue=green") && !apps[0].env[1] && !strcmp(apps[0].cwd, "/"));
    assert(!apps[1].cwd && !apps[1].env[0]);
    if (!strcmp(name, "later")) {
        assert(ninfos == 2 && IOF_CHECK_KEY(&infos[1], IOF_NOHUP));
        cbfunc(IOF_SUCCESS, NULL, cbdata);
        return IOF_SUCCESS;
    }
    return strcmp(name, "now") ? IOF_ERR_NO_PERMISSIONS : IOF_OPERATION_SUCCEEDED;
}

/* A tool that starts jobs. */
static void spawner(int may)
{
    iof_app_t apps[2] = {shell("exit 3", 2), shell("exit 0", 1)};
    char *names[] = {"now", "later", "no"};
    iof_status_t expected[] = {IOF_SUCCESS, IOF_SUCCESS, IOF_ERR_NO_PERMISSIONS};
    iof_info_t infos[2];
    apps[0].cwd = strdup("/");
    iof_Argv_append_nosize(&apps[0].env, "COLOUR=blue=green");
    CHECK(iof_tool_init(NULL, NULL, 0));
    for (int i = 0; i < 3; i++) {
        CHECK(iof_Info_load(&infos[0], IOF_NSPACE, names[i], IOF_STRING));
        CHECK(iof_Info_load(&infos[1], IOF_NOHUP, NULL, IOF_BOOL));
        iof_status_t status = iof_Spawn(infos, i == 1 ? 2 : 1, apps, 2, NULL);
        assert(status == (may ? expected[i] : IOF_ERR_NOT_SUPPORTED));
        iof_Value_destruct(&infos[0].value);
    }
    CHECK(iof_tool_finalize());
}

/* A launcher that lets tools start jobs, or not. */
static void granting(int may)
{
    iof_server_module_t module = {.spawn = may ? grant : NULL};
    CHECK(iof_server_init(&module, NULL, 0));
    ends_well(start(may ? "spawner" : "refused", -1));
}

static void wait_for(const char *text)
{
    for (int tries = 0; !has(text); tries++) {
        assert(tries < 60000);
        poll(NULL, 0, 1);
    }
}

/* Programs with a file, a pipe and a terminal as stdin. The launcher closes, flushes and types. */
static void streams(void)
{
    iof_app_t apps[3] = {
        shell("read a; read b; echo file $a $b", 1),
        shell("read a; echo out $a; read b; echo err $b >&2; sleep 100 & echo left", 1),
        shell("read a; stty size; echo pty $a >&2; exec sleep 100", 2),
    };
    char file[] = "/tmp/iof-host-XXXXXX";
    int fd = mkstemp(file);
    iof_proc_t piped, typed, none;
    iof_info_t grace;
    uint32_t milliseconds = 100;
    iof_rank_t one = 1;
    struct winsize size = {.ws_row = 30, .ws_col = 100};
    assert(fd >= 0 && write(fd, "1\n2\n", 4) == 4 && close(fd) == 0);
    CHECK(iof_server_init(NULL, NULL, 0));
    IOF_APP_INFO_CREATE(&apps[0], 1);
    CHECK(iof_Info_load(&apps[0].info[0], IOF_STDIN_FILE, file, IOF_STRING));
    IOF_APP_INFO_CREATE(&apps[1], 2);
    CHECK(iof_Info_load(&apps[1].info[0], IOF_FWD_STDIN, NULL, IOF_BOOL));
    CHECK(iof_Info_load(&apps[1].info[1], IOF_IOF_MERGE_STDERR_STDOUT, NULL, IOF_BOOL));
    IOF_APP_INFO_CREATE(&apps[2], 2);
    iof_rank_t zero = 0;
    CHECK(iof_Info_load(&apps[2].info[0], IOF_PTY, &one, IOF_PROC_RANK));
    CHECK(iof_Info_load(&apps[2].info[1], IOF_STDIN_INHERIT, &one, IOF_PROC_RANK));
    CHECK(iof_Info_load(&grace, IOF_GRACE, &milliseconds, IOF_UINT32));
    spawn(&grace, 1, apps, 3);
    CHECK(iof_Load_procid(&piped, "job", 1));
    CHECK(iof_Load_procid(&typed, "job", 3));
    CHECK(iof_Load_procid(&none, "job", zero));
    wait_for("file 1 2\n");

    /* The second program has a pipe, and one stream for stdout and stderr. */
    iof_byte_object_t bo = {"x\n", 2};
    CHECK(iof_IOF_push(&piped, 1, &bo, NULL, 0, NULL, NULL));
    wait_for("out x\n");
    CHECK(iof_IOF_push(&piped, 1, &bo, NULL, 0, NULL, NULL));
    wait_for("err x\n");

    /* The last rank has a terminal, at which the launcher types. */
    int pty = iof_server_pty(&typed);
    CHECK(pty);
    assert(iof_server_pty(&none) == IOF_ERR_NOT_FOUND);
    assert(ioctl(pty, TIOCSWINSZ, &size) == 0 && write(pty, "key\n", 4) == 4 && close(pty) == 0);
    wait_for("30 100\n");
    wait_for("pty key");

    /* What was written before is received when the flush returns. */
    CHECK(iof_server_flush(&all, -1));
    CHECK(iof_server_flush(&typed, 60000));
    assert(iof_server_flush(NULL, 0) == IOF_ERR_BAD_PARAM);
    iof_proc_t rank2;
    CHECK(iof_Load_procid(&rank2, "job", 2));
    CHECK(iof_server_close(&rank2, IOF_FWD_STDOUT_CHANNEL | IOF_FWD_STDERR_CHANNEL));
    assert(iof_server_close(&rank2, IOF_FWD_STDIN_CHANNEL) == IOF_ERR_NOT_FOUND);
    CHECK(iof_Load_procid(&none, "none", 0));
    assert(iof_server_close(&none, IOF_FWD_STDOUT_CHANNEL) == IOF_ERR_NOT_FOUND);
    assert(iof_server_flush(&none, 0) == IOF_ERR_NOT_FOUND);
    CHECK(iof_server_signal("job", 9));
    /* The process that the second program has left behind holds its output only for the grace
     * period. */
    CHECK(iof_server_wait("job", NULL));
    assert(unlink(file) == 0 && has("left\n"));
    for (int i = 0; i < 3; i++) {
        IOF_APP_DESTRUCT(&apps[i]);
    }
}

static int events;

static void event(size_t id, iof_status_t status, const iof_proc_t *source, iof_info_t *info, size_t ninfo,
                  iof_info_t *results, size_t nresults, iof_event_notification_cbfunc_fn_t cbfunc, void *cbdata)
{
    (void)id, (void)source, (void)info, (void)ninfo, (void)results, (void)nresults, (void)cbfunc, (void)cbdata;
    assert(status == IOF_ERR_LOST_CONNECTION);
    __atomic_add_fetch(&events, 1, __ATOMIC_SEQ_CST);
}

static void registered(iof_status_t status, size_t id, void *cbdata)
{
    assert(status == IOF_SUCCESS && id > 0);
    *(size_t *)cbdata = id;
}

/* Returns the text with which a query is answered. */
static char *text_of(char *key)
{
    char *keys[] = {key, NULL}, *text;
    iof_query_t query = {.keys = keys};
    iof_info_t *results;
    size_t count;
    CHECK(iof_Query_info(&query, 1, &results, &count));
    assert(count == 1 && IOF_CHECK_KEY(&results[0], key) && results[0].value.type == IOF_STRING);
    text = strdup(results[0].value.data.string);
    iof_Info_free(results, count);
    return text;
}

static void answered(iof_status_t status, iof_info_t *info, size_t ninfo, void *cbdata,
                     iof_release_cbfunc_t release_fn, void *release_cbdata)
{
    (void)info;
    *(int *)cbdata = status < 0 ? status : (int)ninfo;
    if (release_fn) {
        release_fn(release_cbdata);
    }
}

/* A tool that connects after it has begun, disconnects, and connects again. It uses a thread of the
 * library, or progresses all of its connections itself. */
static void later(bool progresses)
{
    char *uri = getenv("IOF_SERVER"), *keys[] = {IOF_QUERY_AVAIL_SERVERS, IOF_QUERY_NAMESPACES, NULL};
    iof_query_t query = {.keys = keys};
    iof_info_t info, *results;
    iof_proc_t self, engine, *servers;
    size_t id = 0, count;
    iof_info_t infos[2];
    CHECK(iof_Info_load(&infos[0], IOF_TOOL_DO_NOT_CONNECT, NULL, IOF_BOOL));
    CHECK(iof_Info_load(&infos[1], IOF_EXTERNAL_PROGRESS, NULL, IOF_BOOL));
    CHECK(iof_tool_init(&self, infos, 1 + progresses));
    assert(!iof_tool_is_connected());
    /* The callback of the registration is called, and answers of the library exist. */
    iof_status_t code = IOF_ERR_LOST_CONNECTION;
    CHECK(iof_Register_event_handler(&code, 1, NULL, 0, event, registered, &id));
    assert(id > 0 && iof_Deregister_event_handler(99, NULL, NULL) == IOF_SUCCESS);
    assert(!strcmp(text_of(IOF_QUERY_STABLE_ABI_VERSION), "0.0"));
    assert(iof_Query_info(&query, 1, &results, &count) == IOF_ERR_PARTIAL_SUCCESS && count == 1);
    iof_data_array_t *found = results[0].value.data.darray;
    assert(IOF_CHECK_KEY(&results[0], IOF_QUERY_AVAIL_SERVERS) && found->type == IOF_INFO && found->size >= 1);
    iof_Info_free(results, count);
    /* The same without blocking. */
    int answer = 0;
    CHECK(iof_Query_info_nb(&query, 1, answered, &answer));
    assert(answer == IOF_ERR_PARTIAL_SUCCESS);
    keys[1] = NULL;
    CHECK(iof_Query_info_nb(&query, 1, answered, &answer));
    assert(answer == 1);
    keys[0] = IOF_QUERY_NAMESPACES;
    CHECK(iof_Query_info_nb(&query, 1, answered, &answer));
    assert(answer == IOF_ERR_UNREACH);
    CHECK(iof_tool_get_servers(&servers, &count));
    assert(count == 0 && iof_tool_disconnect(&self) == IOF_ERR_NOT_FOUND);

    CHECK(iof_Info_load(&info, IOF_SERVER_URI, uri, IOF_STRING));
    assert(iof_tool_attach_to_server(NULL, NULL, NULL, 0) == IOF_ERR_BAD_PARAM);
    for (int round = 0; round < 2; round++) {
        CHECK(iof_tool_attach_to_server(&self, &engine, &info, 1));
        assert(iof_tool_is_connected());
        /* The program progresses each of its connections. */
        assert(progresses ? iof_progress_fd() >= 0 : iof_progress_fd() == IOF_ERR_NOT_AVAILABLE);
        assert(iof_tool_attach_to_server(NULL, NULL, &info, 1) == IOF_ERR_NOT_SUPPORTED);
        assert(!strcmp(text_of(IOF_SERVER_URI), uri));
        CHECK(iof_tool_get_servers(&servers, &count));
        assert(count == 1 && IOF_CHECK_PROCID(&servers[0], &engine));
        CHECK(iof_tool_set_server(&servers[0], NULL, 0));
        assert(iof_tool_set_server(&self, NULL, 0) == IOF_ERR_UNREACH);
        free(servers);
        if (round == 0) {
            CHECK(iof_tool_disconnect(&engine));
        }
    }
    /* The handler from before the connection receives its end. */
    printf("ready\n");
    fflush(stdout);
    while (__atomic_load_n(&events, __ATOMIC_SEQ_CST) == 0) {
        poll(NULL, 0, 1);
        iof_Progress();
    }
    assert(!iof_tool_is_connected() && iof_tool_set_server(&engine, NULL, 0) == IOF_ERR_UNREACH);
    CHECK(iof_tool_get_servers(&servers, &count));
    assert(count == 0);
    /* The tool connects to the next engine, and its handler receives the end of that one, too. */
    while (iof_tool_attach_to_server(&self, &engine, &info, 1) != IOF_SUCCESS) {
        poll(NULL, 0, 1);
        iof_Progress();
    }
    assert(iof_tool_is_connected());
    printf("ready\n");
    fflush(stdout);
    while (__atomic_load_n(&events, __ATOMIC_SEQ_CST) == 1) {
        poll(NULL, 0, 1);
        iof_Progress();
    }
    CHECK(iof_tool_finalize());
}

/* Queries for several jobs, and wrong arguments of a connected process. */
static void queries(void)
{
    char *names[] = {"a", "b"};
    iof_app_t app = shell("exec sleep 1000", 2);
    iof_info_t info, qualifiers[2], *results;
    size_t count;
    CHECK(iof_server_init(NULL, NULL, 0));
    for (int i = 0; i < 2; i++) {
        CHECK(iof_Info_load(&qualifiers[i], IOF_NSPACE, names[i], IOF_STRING));
        CHECK(iof_server_spawn(&qualifiers[i], 1, &app, 1, NULL));
    }
    char *keys[] = {IOF_QUERY_JOB_STATUS, IOF_LOCAL_PROCS, IOF_QUERY_SPAWN_SUPPORT, NULL};
    iof_query_t query = {.keys = keys, .qualifiers = qualifiers, .nqual = 2};
    CHECK(iof_Query_info(&query, 1, &results, &count));
    assert(count == 3);
    iof_data_array_t *array = results[0].value.data.darray;
    iof_info_t *status = array->array;
    assert(IOF_CHECK_KEY(&results[0], IOF_QUERY_JOB_STATUS) && array->type == IOF_INFO && array->size == 2);
    for (int i = 0; i < 2; i++) {
        assert(IOF_CHECK_KEY(&status[i], names[i]) && status[i].value.type == IOF_STATUS);
        assert(status[i].value.data.status == IOF_EVENT_JOB_START);
    }
    array = results[1].value.data.darray;
    iof_proc_t *procs = array->array;
    assert(array->type == IOF_PROC && array->size == 4);
    assert(IOF_CHECK_NSPACE(procs[3].nspace, "b") && procs[3].rank == 1);
    assert(results[2].value.type == IOF_STRING && strstr(results[2].value.data.string, IOF_WDIR));
    iof_Info_free(results, count);

    keys[0] = IOF_JOB_SIZE, keys[1] = IOF_LOCAL_PEERS, keys[2] = NULL;
    query.nqual = 1;
    CHECK(iof_Query_info(&query, 1, &results, &count));
    assert(count == 2 && results[0].value.type == IOF_UINT32 && results[0].value.data.uint32 == 2);
    assert(results[1].value.type == IOF_STRING && !strcmp(results[1].value.data.string, "0,1"));
    iof_Info_free(results, count);
    query.nqual = 0;
    assert(iof_Query_info(&query, 1, &results, &count) == IOF_ERR_BAD_PARAM && *iof_last_error());

    /* The source of a message is a process. */
    iof_Value_destruct(&qualifiers[0].value);
    CHECK(iof_Info_load(&info, IOF_LOG_STDERR, "text", IOF_STRING));
    CHECK(iof_Info_load(&qualifiers[0], IOF_LOG_SOURCE, "text", IOF_STRING));
    assert(iof_Log(&info, 1, qualifiers, 1) == IOF_ERR_BAD_PARAM);
    assert(iof_Log_nb(&info, 1, qualifiers, 1, NULL, NULL) == IOF_ERR_BAD_PARAM);
    assert(iof_IOF_deregister(99, NULL, 0, NULL, NULL) == IOF_ERR_BAD_PARAM);
    iof_info_t wrong;
    CHECK(iof_Info_load(&wrong, IOF_IOF_TAG_OUTPUT, "yes", IOF_STRING));
    assert(iof_IOF_pull(&all, 1, &wrong, 1, IOF_FWD_STDOUT_CHANNEL, NULL, NULL, NULL) == IOF_ERR_TYPE_MISMATCH);
    assert(!strcmp(iof_last_error(), "PMIX_IOF_TAG_OUTPUT has a value of another type: give a bool"));
    iof_Value_destruct(&wrong.value);
    for (int i = 0; i < 2; i++) {
        CHECK(iof_server_signal(names[i], 9));
        CHECK(iof_server_wait(names[i], NULL));
        iof_Value_destruct(&qualifiers[i].value);
    }
    iof_Value_destruct(&info.value);
    IOF_APP_DESTRUCT(&app);
}

int main(int argc, char **argv)
{
    assert(argc == 2);
    CHECK(iof_Load_procid(&all, "job", IOF_RANK_WILDCARD));
    if (!strcmp(argv[1], "tool")) {
        tool();
        return 0;
    }
    if (!strcmp(argv[1], "spawner") || !strcmp(argv[1], "refused")) {
        spawner(!strcmp(argv[1], "spawner"));
        return 0;
    }
    if (!strcmp(argv[1], "gateway")) {
        gateway();
        return 0;
    }
    if (!strcmp(argv[1], "later") || !strcmp(argv[1], "later-in-loop")) {
        later(!strcmp(argv[1], "later-in-loop"));
        return 0;
    }
    if (!strcmp(argv[1], "server")) {
        /* Ends while its tool waits for that. */
        static const char *const tools[] = {"later", "later-in-loop"};
        for (int tool = 0; tool < 2; tool++) {
            int pipes[2];
            char byte;
            assert(pipe2(pipes, O_CLOEXEC) == 0);
            CHECK(iof_server_init(NULL, NULL, 0));
            pid_t child = start(tools[tool], pipes[1]);
            for (int engine = 0; engine < 2; engine++) {
                while (read(pipes[0], &byte, 1) == 1 && byte != '\n') {
                }
                CHECK(iof_server_finalize());
                if (engine == 0) {
                    CHECK(iof_server_init(NULL, NULL, 0));
                }
            }
            ends_well(child);
        }
        printf("done\n");
        return 0;
    }
    if (!strcmp(argv[1], "host")) {
        host();
    } else if (!strcmp(argv[1], "spawns") || !strcmp(argv[1], "no-spawns")) {
        granting(!strcmp(argv[1], "spawns"));
    } else if (!strcmp(argv[1], "queries")) {
        queries();
    } else {
        streams();
    }
    CHECK(iof_server_finalize());
    printf("done\n");
    return 0;
}
