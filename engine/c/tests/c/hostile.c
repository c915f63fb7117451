/* Calls every entry point with invalid arguments: NULL, lengths that are too large, unaligned
 * pointers, names without a terminator, unknown types. It does so before initialization, as a
 * server, and as a tool. Nothing may crash, and the library must work afterwards. The first
 * argument is the seed. */
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

/* Returns a pseudo-random number below `below`. */
static uint64_t pick(uint64_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % below;
}

static char texts[3][1200];
static struct timeval number; /* Has room for the largest of the plain values. */
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
                              IOF_LOG_EMAIL, IOF_LOG_STDOUT, IOF_STDIN_TGT, IOF_RANK, IOF_FROM_LINES, IOF_UNTIL,
                              IOF_EXTERNAL_PROGRESS, IOF_BACKEND, IOF_IOF_XML_OUTPUT, IOF_IOF_OUTPUT_RAW,
                              IOF_IOF_TAG_DETAILED_OUTPUT, IOF_IOF_LOCAL_OUTPUT, "no.such.key", ""};

static void *null_or(void *pointer)
{
    return pick(4) ? pointer : NULL;
}

/* Returns `pointer`, NULL, or an unaligned pointer. */
static void *invalid_or(void *pointer)
{
    switch (pick(8)) {
    case 0: return NULL;
    case 1: return (char *)pointer + 1;
    default: return pointer;
    }
}

/* Returns a count up to `actual`, or one that is far too large. The library cannot detect a
 * count that is only slightly too large. */
static size_t count(size_t actual)
{
    return pick(6) ? pick(actual + 1) : SIZE_MAX >> pick(30);
}

static void fill_name(char *name, size_t size)
{
    if (pick(4)) {
        snprintf(name, size, "%s", pick(2) ? "job" : "a/b");
    } else {
        memset(name, pick(2) ? 'x' : 0xff, size); /* No terminator. */
    }
}

static void fill_value(iof_value_t *value)
{
    memset(value, 0, sizeof *value);
    value->type = pick(72);
    switch (value->type) {
    case IOF_STRING: value->data.string = null_or(texts[pick(3)]); break;
    case IOF_BYTE_OBJECT: value->data.bo = bytes; break;
    case IOF_PROC: value->data.proc = invalid_or(&procs[0]); break;
    case IOF_PROC_INFO: value->data.pinfo = null_or(&proc_info); break;
    case IOF_PROC_NSPACE: value->data.nspace = (iof_nspace_t *)null_or(procs[1].nspace); break;
    case IOF_DATA_ARRAY: value->data.darray = invalid_or(&array); break;
    case IOF_ENVAR: break;
    default: value->data.uint64 = pick(UINT64_MAX); break;
    }
}

static void fill_info(iof_info_t *info)
{
    if (pick(5)) {
        snprintf(info->key, sizeof info->key, "%s", known[pick(sizeof known / sizeof *known)]);
    } else {
        memset(info->key, 'k', sizeof info->key);
    }
    info->flags = pick(2) ? IOF_INFO_REQD : pick(UINT32_MAX);
    fill_value(&info->value);
}

/* Fills all arguments with new random values. */
static void fill_arguments(void)
{
    snprintf(texts[0], sizeof texts[0], "/nowhere/at/all");
    memset(texts[1], 'y', sizeof texts[1] - 1);
    memset(texts[2], 0xfe, 16);
    for (int i = 0; i < 4; i++) {
        fill_name(procs[i].nspace, sizeof procs[i].nspace);
        procs[i].rank = pick(3) ? pick(4) : IOF_RANK_WILDCARD;
    }
    bytes = (iof_byte_object_t){null_or(texts[0]), pick(2) ? pick(15) : pick(1000)};
    array = (iof_data_array_t){IOF_INFO, pick(3), null_or(fields)};
    memset(&proc_info, 0, sizeof proc_info);
    fill_info(&fields[0]);
    fill_info(&fields[1]);
    for (int i = 0; i < 2; i++) { /* No endlessly nested arrays. */
        if (fields[i].value.type == IOF_DATA_ARRAY) {
            fields[i].value.data.darray = NULL;
        }
    }
    for (int i = 0; i < 4; i++) {
        fill_info(&infos[i]);
    }
    keys[0] = null_or(pick(2) ? texts[1] : (char *)IOF_QUERY_NAMESPACES);
    keys[1] = null_or((char *)"no.such.key");
    for (int i = 0; i < 2; i++) {
        queries[i] = (iof_query_t){invalid_or(keys), invalid_or(infos), count(4)};
        apps[i] = (iof_app_t){.cmd = null_or(texts[0]), .argv = null_or(keys), .env = null_or(keys),
                              .cwd = null_or(texts[1]), .maxprocs = (int)pick(4) - 1, .info = invalid_or(infos),
                              .ninfo = count(4)};
        int bad[] = {-1, 9999, -7};
        ranks[i] = (iof_adopted_t){pick(3), null_or(texts[pick(3)]), bad[pick(3)], bad[pick(3)], bad[pick(3)],
                                   bad[pick(3)], bad[pick(3)], pick(2) ? 0 : -1};
    }
    number.tv_sec = pick(UINT64_MAX);
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

static void answered(iof_status_t status, iof_info_t *info, size_t ninfo, void *cbdata, iof_release_cbfunc_t release,
                     void *release_data)
{
    (void)info, (void)ninfo;
    op(status, cbdata);
    release(release_data);
}

static void output(size_t id, iof_iof_channel_t channel, iof_proc_t *source, iof_byte_object_t *payload,
                   iof_info_t *info, size_t ninfo)
{
    (void)id, (void)channel, (void)source, (void)payload, (void)info, (void)ninfo;
}

static void event(size_t id, iof_status_t status, const iof_proc_t *source, iof_info_t *info, size_t ninfo,
                  iof_info_t *results, size_t nresults, iof_event_notification_cbfunc_fn_t done, void *cbdata)
{
    (void)id, (void)source, (void)info, (void)ninfo, (void)results, (void)nresults;
    done(status, NULL, 0, NULL, NULL, cbdata);
}

/* Makes one random call. Blocking calls have arguments that cannot succeed, so that none blocks
 * forever. */
static void make_call(void)
{
    iof_info_t *results, info_out;
    iof_value_t value_out;
    size_t nresults;
    void *data = &number;
    iof_status_t codes[2] = {pick(2) ? IOF_EVENT_JOB_END : -1, 0};
    iof_data_array_t listed;
    iof_op_cbfunc_t cb = pick(2) ? op : NULL;
    fill_arguments();
    switch (pick(29)) {
    case 0: iof_IOF_pull(invalid_or(procs), count(4), invalid_or(infos), count(4), pick(20), pick(2) ? output : NULL,
                         pick(2) ? registered : NULL, NULL); break;
    case 1: iof_IOF_deregister(pick(8), invalid_or(infos), count(4), cb, NULL); break;
    case 2: iof_IOF_push(invalid_or(procs), count(4), pick(8) ? &bytes : NULL, NULL, count(1), cb, NULL); break;
    case 3:
        results = NULL;
        iof_Query_info(invalid_or(queries), count(2), &results, null_or(&nresults));
        if (results) {
            iof_Info_free(results, nresults);
        }
        break;
    case 4: iof_Query_info_nb(invalid_or(queries), count(2), pick(4) ? answered : NULL, NULL); break;
    case 5: iof_Log(invalid_or(infos), count(4), invalid_or(infos), count(4)); break;
    case 6: iof_Log_nb(invalid_or(infos), count(4), invalid_or(infos), count(4), cb, NULL); break;
    case 7: iof_Register_event_handler(invalid_or(codes), count(2), NULL, count(1), pick(2) ? event : NULL,
                                       pick(2) ? registered : NULL, NULL); break;
    case 8: iof_Deregister_event_handler(pick(8), cb, NULL); break;
    case 9: iof_Load_procid(null_or(&procs[0]), null_or(texts[pick(3)]), pick(9)); break;
    case 10:
        if (iof_Value_load(invalid_or(&value_out), pick(3) ? NULL : texts[0], pick(5) ? pick(22) : 600) == IOF_SUCCESS) {
            if (pick(2)) {
                iof_Value_unload(&value_out, pick(8) ? &data : NULL, null_or(&nresults));
                if (data != &number && value_out.type != IOF_POINTER) {
                    free(data);
                }
            }
            iof_Value_destruct(&value_out);
        }
        break;
    case 11:
        if (iof_Info_load(pick(3) ? &info_out : NULL, null_or(texts[pick(3)]), texts[0], pick(5)) == IOF_SUCCESS) {
            iof_Value_destruct(&info_out.value);
        }
        break;
    case 12:
        if (iof_Info_xfer(&info_out, invalid_or(&infos[pick(4)])) == IOF_SUCCESS) {
            iof_Value_destruct(&info_out.value);
        }
        break;
    case 13:
        if (iof_Value_xfer(&value_out, invalid_or(&infos[pick(4)].value)) == IOF_SUCCESS) {
            iof_Value_destruct(&value_out);
        }
        break;
    case 14: data = iof_Info_list_start();
        iof_Info_list_add(pick(8) ? data : NULL, null_or(texts[0]), texts[0], IOF_STRING);
        iof_Info_list_xfer(pick(8) ? data : texts[0], invalid_or(&infos[0]));
        if (iof_Info_list_convert(pick(8) ? data : NULL, pick(8) ? &listed : NULL) == IOF_SUCCESS) {
            iof_Data_array_destruct(&listed);
        }
        iof_Info_list_release(NULL);
        iof_Info_list_release(texts[0]);
        iof_Info_list_release(data);
        break;
    case 15: iof_Value_destruct(NULL), iof_Data_array_destruct(NULL), iof_Info_free(NULL, pick(100)), iof_Info_required(NULL); break;
    case 16: iof_Progress(), iof_progress_fd(), iof_progress_timeout(); break;
    case 17: assert(iof_Error_string(pick(UINT32_MAX)) && iof_IOF_channel_string(pick(UINT16_MAX))); break;
    case 18: assert(iof_Proc_state_string(pick(256)) && iof_Data_type_string(pick(UINT16_MAX)) && iof_Get_version()); break;
    case 19: iof_server_spawn(invalid_or(infos), count(4), invalid_or(apps), count(2), NULL); break;
    case 20: iof_server_adopt(null_or(texts[pick(3)]), invalid_or(ranks), count(2), invalid_or(infos), count(4)); break;
    case 21: iof_server_report_exit(invalid_or(&procs[0]), pick(UINT32_MAX)); break;
    case 22: iof_server_wait(null_or(texts[pick(3)]), NULL); break;
    case 23: iof_server_signal(null_or(texts[pick(3)]), pick(100)), iof_server_forget(null_or(texts[pick(3)])); break;
    case 24: iof_server_IOF_deliver(invalid_or(&procs[0]), pick(20), pick(8) ? &bytes : NULL, invalid_or(infos), count(4), cb, NULL); break;
    case 25: iof_server_end_job(null_or(texts[pick(3)]), pick(9)); break;
    case 26: assert(iof_last_error()); break;
    case 27: {
        char **list = iof_Argv_split(null_or(texts[pick(3)]), pick(300)), **copy;
        iof_Argv_prepend_nosize(pick(8) ? &list : NULL, null_or(texts[pick(3)]));
        iof_Argv_append_unique_nosize(pick(8) ? &list : NULL, null_or(texts[pick(3)]));
        iof_Setenv(null_or(texts[0]), null_or(texts[1]), pick(2), pick(8) ? &list : NULL);
        copy = iof_Argv_copy(list);
        free(iof_Argv_join(copy, pick(300)));
        iof_Argv_free(copy), iof_Argv_free(list);
        break;
    }
    case 28:
        iof_Data_array_construct(NULL, 1, IOF_INFO);
        iof_Data_array_construct(&listed, pick(1000), pick(8) ? pick(72) : pick(UINT16_MAX));
        iof_Data_array_destruct(&listed);
        break;
    }
}

/* Checks that the library still works. */
static void check_works(void)
{
    char *query_keys[] = {IOF_QUERY_LOG_CHANNELS, NULL};
    iof_query_t query = {.keys = query_keys};
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
            make_call();
        }
        check_works();
        assert(iof_tool_finalize() == IOF_SUCCESS);
        return 0;
    }
    for (int round = 0; round < rounds; round++) {
        make_call();
    }
    for (int round = 0; round < 100; round++) {
        iof_info_t bad[4];
        fill_arguments();
        memcpy(bad, infos, sizeof bad);
        iof_tool_init(pick(2) ? &procs[0] : NULL, bad, pick(2) ? 1000 : 0);
        while (iof_tool_finalize() == IOF_SUCCESS) {
        }
        assert(iof_server_init(NULL, (iof_info_t *)((char *)bad + 1), 1) == IOF_ERR_BAD_PARAM);
        assert(iof_server_init(NULL, NULL, 1) == IOF_ERR_BAD_PARAM);
    }
    assert(iof_server_init(NULL, NULL, 0) == IOF_SUCCESS);
    snprintf(uri, sizeof uri, "%s", iof_server_uri());
    for (int round = 0; round < rounds; round++) {
        make_call();
    }
    check_works();
    pid_t child = fork();
    assert(child >= 0);
    if (child == 0) {
        char tool_seed[32];
        snprintf(tool_seed, sizeof tool_seed, "%llu", (unsigned long long)seed);
        setenv("IOF_SERVER", uri, 1);
        execl("/proc/self/exe", "hostile", tool_seed, argv[2], "tool", (char *)NULL);
        abort();
    }
    int status;
    assert(waitpid(child, &status, 0) == child && status == 0);
    check_works();
    assert(iof_server_finalize() == IOF_SUCCESS);
    printf("survived\n");
    return 0;
}
