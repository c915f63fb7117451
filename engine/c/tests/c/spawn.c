/* A tool that has the engine of IOF_SERVER_URI start jobs. */
#include <stdbool.h>
#include <string.h>

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

int main(int argc, char **argv)
{
    iof_info_t info[3];
    iof_nspace_t name = "";
    iof_proc_t all = {.rank = IOF_RANK_WILDCARD};
    uint32_t size = 65536;
    bool yes = true;
    assert(argc == 2);
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
    iof_info_t tag;
    CHECK(iof_Info_load(&tag, IOF_IOF_TAG_OUTPUT, &yes, IOF_BOOL));
    assert(iof_Spawn(&tag, 1, apps, 1, name) == IOF_ERR_NOT_SUPPORTED);
    assert(strstr(iof_last_error(), "IOF_TAG_OUTPUT is not supported here"));
    iof_app_t tagged = program("exit 0", 1, &tag);
    assert(iof_Spawn(NULL, 0, &tagged, 1, name) == IOF_ERR_NOT_SUPPORTED);
    assert(iof_Spawn(NULL, 0, apps, 0, name) != IOF_SUCCESS);

    /* All or none. */
    iof_app_t mixed[2] = {program("exit 0", 1, NULL), {.cmd = "/no/such/program", .maxprocs = 1}};
    assert(iof_Spawn(NULL, 0, mixed, 2, NULL) == IOF_ERR_JOB_FAILED_TO_LAUNCH);
    assert(strstr(iof_last_error(), "rank 1 of app 1"));
    for (int i = 0; i < 3; i++) {
        iof_Value_destruct(&info[i].value);
    }
    CHECK(iof_tool_finalize());
    assert(iof_Spawn(NULL, 0, apps, 1, NULL) == IOF_ERR_INIT);
    return 0;
}
