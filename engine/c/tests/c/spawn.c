/* A tool that has the engine of IOF_SERVER_URI start jobs. */
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#include "check.h"

static char output[256];
static volatile int ended, answered;
static volatile iof_status_t answer;
static iof_nspace_t answered_name;

static void received(size_t handler, iof_iof_channel_t channel, iof_proc_t *source, iof_byte_object_t *payload,
                     iof_info_t info[], size_t ninfo)
{
    (void)handler, (void)channel, (void)source;
    assert(strlen(output) + payload->size < sizeof output);
    strncat(output, payload->bytes ? payload->bytes : "", payload->size);
    for (size_t i = 0; i < ninfo; i++) {
        ended += !strcmp(info[i].key, IOF_IOF_COMPLETE);
    }
}

static void started(iof_status_t status, char *nspace, void *cbdata)
{
    assert(cbdata == &answer);
    strcpy(answered_name, nspace);
    answer = status;
    answered = 1;
}

static iof_app_t program(char *script, int ranks, iof_info_t *info)
{
    static char *argv[2][4];
    static int next;
    char **args = argv[next++ % 2];
    args[0] = "sh", args[1] = "-c", args[2] = script, args[3] = NULL;
    iof_app_t app = {.cmd = "sh", .argv = args, .maxprocs = ranks, .info = info, .ninfo = info != NULL};
    return app;
}

/* Has the library and the callback receive the output of a job, lets it end, and waits for that. */
static void print_to_the_end(const iof_proc_t *all, const char *gate)
{
    int before = ended;
    size_t printed = iof_IOF_pull(all, 1, NULL, 0, IOF_FWD_STDOUT_CHANNEL, NULL, NULL, NULL);
    CHECK(printed);
    CHECK(iof_IOF_pull(all, 1, NULL, 0, IOF_FWD_STDOUT_CHANNEL, received, NULL, NULL));
    close(open(gate, O_WRONLY));
    while (ended == before) {
        usleep(1000);
    }
    /* May have ended with the job. */
    iof_IOF_deregister(printed, NULL, 0, NULL, NULL);
}

/* The library keeps no attributes of a running job that no registration names. */
static void attributes_are_forgotten(const char *gate)
{
    enum { PULLS = 32, PROCS = 4096 };
    static iof_proc_t others[PROCS];
    iof_info_t info[3];
    iof_nspace_t name = "";
    iof_proc_t all = {.rank = IOF_RANK_WILDCARD};
    bool yes = true;
    char script[256];
    size_t handler, full[PULLS], pulls = 0;
    assert(!mkfifo(gate, 0600));
    snprintf(script, sizeof script, "read x <%s; echo untagged", gate);
    iof_app_t app = program(script, 1, NULL);
    CHECK(iof_Info_load(&info[0], IOF_IOF_TAG_OUTPUT, &yes, IOF_BOOL));
    CHECK(iof_Info_load(&info[1], IOF_NSPACE, "unwritten", IOF_STRING));
    CHECK(iof_Info_load(&info[2], IOF_IOF_LOCAL_OUTPUT, &yes, IOF_BOOL));

    /* They went with the last registration. */
    CHECK(iof_Spawn(info, 1, &app, 1, name));
    strcpy(all.nspace, name);
    CHECK(handler = iof_IOF_pull(&all, 1, NULL, 0, IOF_FWD_STDOUT_CHANNEL, received, NULL, NULL));
    CHECK(iof_IOF_deregister(handler, NULL, 0, NULL, NULL));
    print_to_the_end(&all, gate);

    /* The library cannot write the output: the tool names as many processes as it may. */
    for (int i = 0; i < PROCS; i++) {
        strcpy(others[i].nspace, "x");
        others[i].rank = i;
    }
    for (size_t count = PROCS; count > 0;) {
        handler = iof_IOF_pull(others, count, NULL, 0, IOF_FWD_STDOUT_CHANNEL, received, NULL, NULL);
        if ((int)handler < 0) {
            count /= 2;
        } else {
            assert(pulls < PULLS);
            full[pulls++] = handler;
        }
    }
    assert(iof_Spawn(info, 3, &app, 1, name) == IOF_ERR_IOF_FAILURE);
    while (pulls > 0) {
        pulls--;
        CHECK(iof_IOF_deregister(full[pulls], NULL, 0, NULL, NULL));
    }
    strcpy(all.nspace, "unwritten");
    print_to_the_end(&all, gate);
    iof_Value_destruct(&info[1].value);
}

int main(int argc, char **argv)
{
    iof_info_t info[3];
    iof_nspace_t name = "";
    iof_proc_t all = {.rank = IOF_RANK_WILDCARD};
    uint32_t size = 65536;
    bool yes = true;
    assert(argc == 3);
    CHECK(iof_Info_load(&info[0], IOF_SERVER_URI, argv[1], IOF_STRING));
    CHECK(iof_tool_init(NULL, info, 1));
    CHECK(iof_Info_load(&info[0], IOF_IOF_CACHE_SIZE, &size, IOF_UINT32));
    CHECK(iof_Info_load(&info[1], IOF_WDIR, "/", IOF_STRING));
    CHECK(iof_Info_load(&info[2], IOF_NSPACE, "chosen", IOF_STRING));
    char *env[] = {"COLOUR=blue", NULL};
    iof_app_t apps[2] = {program("echo $IOF_NSPACE $COLOUR $PWD", 1, NULL), program("exit 0", 2, NULL)};
    apps[0].env = env;
    CHECK(iof_Spawn(info, 3, apps, 2, name));
    assert(!strcmp(name, "chosen"));
    strcpy(all.nspace, name);
    /* What the ranks have written before is cached. */
    CHECK(iof_IOF_pull(&all, 1, NULL, 0, IOF_FWD_STDOUT_CHANNEL, received, NULL, NULL));
    while (ended < 3) {
        usleep(1000);
    }
    assert(!strcmp(output, "chosen blue /\n"));
    assert(iof_Spawn(info, 3, apps, 2, name) == IOF_ERR_EXISTS);
    assert(strstr(iof_last_error(), "job chosen already exists"));

    /* A name of its own, without blocking. */
    CHECK(iof_Spawn_nb(info, 2, apps, 1, started, (void *)&answer));
    while (!answered) {
        usleep(1000);
    }
    assert(answer == IOF_SUCCESS && !strncmp(answered_name, "iof-", 4));

    /* What cannot be honoured is refused by its name. */
    iof_info_t tag, refused;
    /* The last ones are PMIX_DEBUG_STOP_ON_EXEC, PMIX_DEBUG_STOP_IN_INIT and PMIX_PPR. */
    const char *keys[] = {IOF_IOF_INHERIT, "pmix.dbg.exec", "pmix.dbg.init", "pmix.ppr"};
    for (int i = 0; i < 4; i++) {
        CHECK(iof_Info_load(&refused, keys[i], &yes, IOF_BOOL));
        assert(iof_Spawn(&refused, 1, apps, 1, name) == IOF_ERR_NOT_SUPPORTED);
        assert(strstr(iof_last_error(), i ? keys[i] : "IOF_INHERIT") && strstr(iof_last_error(), ": leave it out"));
    }
    iof_envar_t variable = {.envar = "COLOUR", .value = "blue", .separator = ':'};
    CHECK(iof_Info_load(&refused, "pmix.envar.set", &variable, IOF_ENVAR));
    iof_app_t changed = program("exit 0", 1, &refused);
    assert(iof_Spawn(&refused, 1, apps, 1, name) == IOF_ERR_NOT_SUPPORTED);
    assert(strstr(iof_last_error(), "pmix.envar.set has an unsupported value"));
    assert(iof_Spawn(NULL, 0, &changed, 1, name) == IOF_ERR_NOT_SUPPORTED);
    CHECK(iof_Info_load(&tag, IOF_IOF_TAG_OUTPUT, &yes, IOF_BOOL));
    iof_app_t tagged = program("exit 0", 1, &tag);
    assert(iof_Spawn(NULL, 0, &tagged, 1, name) == IOF_ERR_NOT_SUPPORTED);
    assert(iof_Spawn(NULL, 0, apps, 0, name) != IOF_SUCCESS);

    /* So is what cannot be read, with the number or text that is wrong. */
    static char text[(128 << 10) + 2];
    char *variables[] = {"COLOUR", NULL};
    iof_app_t invalid[3] = {program("exit 0", 1, NULL), program("exit 0", -1, NULL), program("exit 0", 1, NULL)};
    const char *reasons[] = {"'COLOUR'", "-1", "131072", "4097"};
    memset(text, 'x', sizeof text - 1);
    invalid[0].env = variables;
    invalid[2].cwd = text;
    for (int i = 0; i < 4; i++) {
        iof_app_t *list = i < 3 ? &invalid[i] : apps;
        assert(iof_Spawn(NULL, 0, list, i < 3 ? 1 : 4097, name) == IOF_ERR_BAD_PARAM);
        assert(strstr(iof_last_error(), reasons[i]));
    }
    iof_info_t odd;
    CHECK(iof_Info_load(&odd, IOF_NSPACE, "a/b", IOF_STRING));
    assert(iof_Spawn(&odd, 1, apps, 1, name) == IOF_ERR_BAD_PARAM && strstr(iof_last_error(), "'/' at byte 1"));
    iof_Value_destruct(&odd.value);

    /* All or none. */
    iof_app_t mixed[2] = {program("exit 0", 1, NULL), {.cmd = "/no/such/program", .maxprocs = 1}};
    assert(iof_Spawn(NULL, 0, mixed, 2, NULL) == IOF_ERR_JOB_FAILED_TO_LAUNCH);
    assert(strstr(iof_last_error(), "rank 1 of app 1"));
    attributes_are_forgotten(argv[2]);
    for (int i = 0; i < 3; i++) {
        iof_Value_destruct(&info[i].value);
    }
    CHECK(iof_tool_finalize());
    assert(iof_Spawn(NULL, 0, apps, 1, NULL) == IOF_ERR_INIT);
    return 0;
}
