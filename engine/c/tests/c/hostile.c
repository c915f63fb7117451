/* Every entry point with what no program should hand over: NULL, lengths that are too long, pointers that are not
 * aligned, names without an end, types that there are not. As nobody, as a server, and as a tool. Nothing may crash, and
 * afterwards all works. A number is the seed of what comes. */
#define _GNU_SOURCE
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <sys/time.h>
#include <unistd.h>

#include <iof.h>

static uint64_t seed;

static uint64_t any(uint64_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % below;
}

static char texts[3][1200];
static struct timeval number; /* Room for the largest of plain values. */
static iof_proc_t procs[4];
static iof_info_t infos[4], fields[2];
static iof_byte_object_t bytes;
static iof_data_array_t array;
static iof_proc_info_t proc_info;
static iof_query_t queries[2];
static iof_app_t apps[2];
static iof_adopted_t ranks[2];
static char *keys[3];
static int answers;

static const char *known[] = {IOF_NSPACE, IOF_SERVER_URI, IOF_IOF_CACHE_SIZE, IOF_IOF_COMPLETE, IOF_IOF_DROP_NEWEST,
                              IOF_LOG_EMAIL, IOF_LOG_STDOUT, IOF_STDIN_TGT, IOF_RANK, IOF_NO_BACKLOG,
                              IOF_EXTERNAL_PROGRESS, IOF_BACKEND, "no.such.key", ""};

static void *null_or(void *other)
{
    return any(4) ? other : NULL;
}

/* An array where there is one, or not, or between two. */
static void *somewhere(void *other)
{
    switch (any(8)) {
    case 0: return NULL;
    case 1: return (char *)other + 1;
    default: return other;
    }
}

/* What a number says that is not too large is true: nobody could tell. */
static size_t count(size_t there)
{
    return any(6) ? any(there + 1) : SIZE_MAX >> any(30);
}

static void name(char *place, size_t size)
{
    if (any(4)) {
        snprintf(place, size, "%s", any(2) ? "job" : "a/b");
    } else {
        memset(place, any(2) ? 'x' : 0xff, size); /* Without an end. */
    }
}

static void value(iof_value_t *of)
{
    memset(of, 0, sizeof *of);
    of->type = any(72);
    switch (of->type) {
    case IOF_STRING: of->data.string = null_or(texts[any(3)]); break;
    case IOF_BYTE_OBJECT: of->data.bo = bytes; break;
    case IOF_PROC: of->data.proc = somewhere(&procs[0]); break;
    case IOF_PROC_INFO: of->data.pinfo = null_or(&proc_info); break;
    case IOF_PROC_NSPACE: of->data.nspace = (iof_nspace_t *)null_or(procs[1].nspace); break;
    case IOF_DATA_ARRAY: of->data.darray = somewhere(&array); break;
    case IOF_ENVAR: break;
    default: of->data.uint64 = any(UINT64_MAX); break;
    }
}

static void info(iof_info_t *of)
{
    if (any(5)) {
        snprintf(of->key, sizeof of->key, "%s", known[any(sizeof known / sizeof *known)]);
    } else {
        memset(of->key, 'k', sizeof of->key);
    }
    of->flags = any(2) ? IOF_INFO_REQD : any(UINT32_MAX);
    value(&of->value);
}

static void garbage(void)
{
    snprintf(texts[0], sizeof texts[0], "/nowhere/at/all");
    memset(texts[1], 'y', sizeof texts[1] - 1);
    memset(texts[2], 0xfe, 16);
    for (int at = 0; at < 4; at++) {
        name(procs[at].nspace, sizeof procs[at].nspace);
        procs[at].rank = any(3) ? any(4) : IOF_RANK_WILDCARD;
    }
    bytes = (iof_byte_object_t){null_or(texts[0]), any(2) ? any(15) : any(1000)};
    array = (iof_data_array_t){IOF_INFO, any(3), null_or(fields)};
    memset(&proc_info, 0, sizeof proc_info);
    info(&fields[0]);
    info(&fields[1]);
    for (int at = 0; at < 2; at++) { /* No arrays in arrays in arrays without an end. */
        if (fields[at].value.type == IOF_DATA_ARRAY) {
            fields[at].value.data.darray = NULL;
        }
    }
    for (int at = 0; at < 4; at++) {
        info(&infos[at]);
    }
    keys[0] = null_or(any(2) ? texts[1] : (char *)IOF_QUERY_NAMESPACES);
    keys[1] = null_or((char *)"no.such.key");
    for (int at = 0; at < 2; at++) {
        queries[at] = (iof_query_t){somewhere(keys), somewhere(infos), count(4)};
        apps[at] = (iof_app_t){.cmd = null_or(texts[0]), .argv = null_or(keys), .env = null_or(keys),
                               .cwd = null_or(texts[1]), .maxprocs = (int)any(4) - 1, .info = somewhere(infos),
                               .ninfo = count(4)};
        int bad[] = {-1, 9999, -7};
        ranks[at] = (iof_adopted_t){any(3), null_or(texts[any(3)]), bad[any(3)], bad[any(3)], bad[any(3)],
                                    bad[any(3)], bad[any(3)], any(2) ? 0 : -1};
    }
    number.tv_sec = any(UINT64_MAX);
}

static void op(iof_status_t status, void *cbdata)
{
    (void)status, (void)cbdata;
    __atomic_add_fetch(&answers, 1, __ATOMIC_SEQ_CST);
}

static void registered(iof_status_t status, size_t id, void *cbdata)
{
    (void)id;
    op(status, cbdata);
}

static void answered(iof_status_t status, iof_info_t *of, size_t n, void *cbdata, iof_release_cbfunc_t release, void *what)
{
    (void)of, (void)n;
    op(status, cbdata);
    release(what);
}

static void output(size_t id, iof_iof_channel_t channel, iof_proc_t *source, iof_byte_object_t *payload, iof_info_t *of,
                   size_t n)
{
    (void)id, (void)channel, (void)source, (void)payload, (void)of, (void)n;
}

static void event(size_t id, iof_status_t status, const iof_proc_t *source, iof_info_t *of, size_t n, iof_info_t *results,
                  size_t nresults, iof_event_notification_cbfunc_fn_t done, void *cbdata)
{
    (void)id, (void)source, (void)of, (void)n, (void)results, (void)nresults;
    done(status, NULL, 0, NULL, NULL, cbdata);
}

/* Of the calls that wait, those that can't be granted, so that none waits for ever. */
static void call(void)
{
    iof_info_t *results, info_out;
    iof_value_t value_out;
    size_t nresults;
    void *data = &number;
    iof_status_t codes[2] = {any(2) ? IOF_EVENT_JOB_END : -1, 0};
    iof_data_array_t listed;
    iof_op_cbfunc_t cb = any(2) ? op : NULL;
    garbage();
    switch (any(27)) {
    case 0: iof_IOF_pull(somewhere(procs), count(4), somewhere(infos), count(4), any(20), any(2) ? output : NULL,
                         any(2) ? registered : NULL, NULL); break;
    case 1: iof_IOF_deregister(any(8), somewhere(infos), count(4), cb, NULL); break;
    case 2: iof_IOF_push(somewhere(procs), count(4), any(8) ? &bytes : NULL, NULL, count(1), cb, NULL); break;
    case 3:
        results = NULL;
        iof_Query_info(somewhere(queries), count(2), &results, null_or(&nresults));
        if (results) {
            iof_Info_free(results, nresults);
        }
        break;
    case 4: iof_Query_info_nb(somewhere(queries), count(2), any(4) ? answered : NULL, NULL); break;
    case 5: iof_Log(somewhere(infos), count(4), somewhere(infos), count(4)); break;
    case 6: iof_Log_nb(somewhere(infos), count(4), somewhere(infos), count(4), cb, NULL); break;
    case 7: iof_Register_event_handler(somewhere(codes), count(2), NULL, count(1), any(2) ? event : NULL,
                                       any(2) ? registered : NULL, NULL); break;
    case 8: iof_Deregister_event_handler(any(8), cb, NULL); break;
    case 9: iof_Load_procid(null_or(&procs[0]), null_or(texts[any(3)]), any(9)); break;
    case 10:
        if (iof_Value_load(somewhere(&value_out), any(3) ? NULL : texts[0], any(5) ? any(22) : 600) == IOF_SUCCESS) {
            if (any(2)) {
                iof_Value_unload(&value_out, any(8) ? &data : NULL, null_or(&nresults));
                if (data != &number && value_out.type != IOF_POINTER) {
                    free(data);
                }
            }
            iof_Value_destruct(&value_out);
        }
        break;
    case 11:
        if (iof_Info_load(any(3) ? &info_out : NULL, null_or(texts[any(3)]), texts[0], any(5)) == IOF_SUCCESS) {
            iof_Value_destruct(&info_out.value);
        }
        break;
    case 12:
        if (iof_Info_xfer(&info_out, somewhere(&infos[any(4)])) == IOF_SUCCESS) {
            iof_Value_destruct(&info_out.value);
        }
        break;
    case 13:
        if (iof_Value_xfer(&value_out, somewhere(&infos[any(4)].value)) == IOF_SUCCESS) {
            iof_Value_destruct(&value_out);
        }
        break;
    case 14: data = iof_Info_list_start();
        iof_Info_list_add(any(8) ? data : NULL, null_or(texts[0]), texts[0], IOF_STRING);
        iof_Info_list_xfer(any(8) ? data : texts[0], somewhere(&infos[0]));
        if (iof_Info_list_convert(any(8) ? data : NULL, any(8) ? &listed : NULL) == IOF_SUCCESS) {
            iof_Data_array_destruct(&listed);
        }
        iof_Info_list_release(NULL);
        iof_Info_list_release(texts[0]);
        iof_Info_list_release(data);
        break;
    case 15: iof_Value_destruct(NULL), iof_Data_array_destruct(NULL), iof_Info_free(NULL, any(100)), iof_Info_required(NULL); break;
    case 16: iof_Progress(), iof_progress_fd(), iof_progress_timeout(); break;
    case 17: assert(iof_Error_string(any(UINT32_MAX)) && iof_IOF_channel_string(any(UINT16_MAX))); break;
    case 18: assert(iof_Proc_state_string(any(256)) && iof_Data_type_string(any(UINT16_MAX)) && iof_Get_version()); break;
    case 19: iof_server_spawn(somewhere(infos), count(4), somewhere(apps), count(2), NULL); break;
    case 20: iof_server_adopt(null_or(texts[any(3)]), somewhere(ranks), count(2), somewhere(infos), count(4)); break;
    case 21: iof_server_report_exit(somewhere(&procs[0]), any(UINT32_MAX)); break;
    case 22: iof_server_wait(null_or(texts[any(3)]), NULL); break;
    case 23: iof_server_signal(null_or(texts[any(3)]), any(100)), iof_server_forget(null_or(texts[any(3)])); break;
    case 24: iof_server_IOF_deliver(somewhere(&procs[0]), any(20), any(8) ? &bytes : NULL, somewhere(infos), count(4), cb, NULL); break;
    case 25: iof_server_end_job(null_or(texts[any(3)]), any(9)); break;
    case 26: assert(iof_last_error()); break;
    }
}

static void works(void)
{
    char *asked[] = {IOF_QUERY_LOG_CHANNELS, NULL};
    iof_query_t query = {.keys = asked};
    iof_info_t *results;
    size_t nresults;
    assert(iof_Query_info(&query, 1, &results, &nresults) == IOF_SUCCESS && nresults == 1);
    iof_Info_free(results, nresults);
}

int main(int argc, char **argv)
{
    int rounds = argc > 2 ? atoi(argv[2]) : 1;
    char uri[512];
    seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    if (argc > 3) {
        assert(iof_tool_init(NULL, NULL, 0) == IOF_SUCCESS);
        for (int round = 0; round < rounds; round++) {
            call();
        }
        works();
        assert(iof_tool_finalize() == IOF_SUCCESS);
        return 0;
    }
    for (int round = 0; round < rounds; round++) {
        call();
    }
    for (int round = 0; round < 100; round++) {
        iof_info_t bad[4];
        garbage();
        memcpy(bad, infos, sizeof bad);
        iof_tool_init(any(2) ? &procs[0] : NULL, bad, any(2) ? 1000 : 0);
        while (iof_tool_finalize() == IOF_SUCCESS) {
        }
        assert(iof_server_init(NULL, (iof_info_t *)((char *)bad + 1), 1) == IOF_ERR_BAD_PARAM);
        assert(iof_server_init(NULL, NULL, 1) == IOF_ERR_BAD_PARAM);
    }
    assert(iof_server_init(NULL, NULL, 0) == IOF_SUCCESS);
    snprintf(uri, sizeof uri, "%s", iof_server_uri());
    for (int round = 0; round < rounds; round++) {
        call();
    }
    works();
    pid_t child = fork();
    assert(child >= 0);
    if (child == 0) {
        char more[32];
        snprintf(more, sizeof more, "%llu", (unsigned long long)seed);
        setenv("IOF_SERVER", uri, 1);
        execl("/proc/self/exe", "hostile", more, argv[2], "tool", (char *)NULL);
        abort();
    }
    int status;
    assert(waitpid(child, &status, 0) == child && status == 0);
    works();
    assert(iof_server_finalize() == IOF_SUCCESS);
    printf("survived\n");
    return 0;
}
