/*
 * Output that the library writes itself, with attributes of output at one level.
 *
 *   formats LEVEL NPROCS SCRIPT [KEY=VALUE]...
 *
 * LEVEL is "init" (iof_server_init), "job" (iof_server_spawn), "pull" (iof_IOF_pull), "tool"
 * (iof_tool_init of a tool), "tool-pull" (iof_IOF_pull of a tool) or "tool-spawn" (iof_Spawn of a
 * tool). With "own" before "init", "job" or "tool-spawn", the program registers for nothing. A VALUE is a flag if it is "true" or "false", and a
 * text otherwise. The stdout and stderr of the program are what the library has written.
 */
#include <assert.h>
#include <iof.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_INFOS = 8 };

static iof_info_t infos[MAX_INFOS];
static size_t ninfos;
static sem_t ended;
static const iof_iof_channel_t channels = IOF_FWD_STDOUT_CHANNEL | IOF_FWD_STDERR_CHANNEL | IOF_FWD_STDDIAG_CHANNEL;

static void event(size_t id, iof_status_t status, const iof_proc_t *source, iof_info_t *event_infos, size_t count,
                  iof_info_t *results, size_t nresults, iof_event_notification_cbfunc_fn_t cbfunc, void *cbdata)
{
    (void)id, (void)status, (void)source, (void)event_infos, (void)count;
    (void)results, (void)nresults, (void)cbfunc, (void)cbdata;
    sem_post(&ended);
}

static void read_infos(char **args)
{
    for (; *args != NULL; args++, ninfos++) {
        char *value = strchr(*args, '=');
        assert(value != NULL && ninfos < MAX_INFOS);
        *value++ = 0;
        bool flag = !strcmp(value, "true");
        if (flag || !strcmp(value, "false")) {
            assert(iof_Info_load(&infos[ninfos], *args, &flag, IOF_BOOL) == IOF_SUCCESS);
        } else {
            assert(iof_Info_load(&infos[ninfos], *args, value, IOF_STRING) == IOF_SUCCESS);
        }
        infos[ninfos].flags = IOF_INFO_REQD;
    }
}

/* Returns the status of a pull of the job without a callback. */
static void pull(const iof_proc_t *job, bool with_infos)
{
    int id = iof_IOF_pull(job, 1, with_infos ? infos : NULL, with_infos ? ninfos : 0, channels, NULL, NULL, NULL);
    if (id < 0) {
        printf("pull %d %s\n", id, iof_last_error());
        exit(0);
    }
}

/* Grants every job. */
static iof_status_t grant(const iof_proc_t *proc, const iof_info_t *job_info, size_t count, const iof_app_t *apps,
                          size_t napps, iof_spawn_cbfunc_t cbfunc, void *cbdata)
{
    (void)proc, (void)job_info, (void)count, (void)apps, (void)napps;
    cbfunc(IOF_SUCCESS, NULL, cbdata);
    return IOF_SUCCESS;
}

/* Starts the job, with these infos as well, by iof_server_spawn or iof_Spawn. */
static bool start(char **args, bool with_infos, bool by_tool)
{
    char *shell[] = {"sh", "-c", args[3], NULL};
    iof_app_t app = {.cmd = "sh", .argv = shell, .maxprocs = atoi(args[2])};
    iof_info_t all[MAX_INFOS + 1];
    size_t count = with_infos ? ninfos + 1 : 1;
    assert(iof_Info_load(&all[0], IOF_NSPACE, "run@7", IOF_STRING) == IOF_SUCCESS);
    memcpy(&all[1], infos, sizeof infos);
    iof_status_t status = by_tool ? iof_Spawn(all, count, &app, 1, NULL) : iof_server_spawn(all, count, &app, 1, NULL);
    if (status != IOF_SUCCESS) {
        printf("spawn %d %s\n", status, iof_last_error());
    }
    return status == IOF_SUCCESS;
}

/* Prints the output of the job, which this process starts or which has ended, in another process. */
static int tool(const iof_proc_t *job, const char *level, char **args, bool own)
{
    bool spawns = !strcmp(level, "tool-spawn");
    iof_status_t codes[] = {IOF_EVENT_JOB_END};
    bool in_init = !strcmp(level, "tool");
    assert(sem_init(&ended, 0, 0) == 0);
    assert(iof_tool_init(NULL, in_init ? infos : NULL, in_init ? ninfos : 0) == IOF_SUCCESS);
    assert(iof_Register_event_handler(codes, 1, NULL, 0, event, NULL, NULL) >= 0);
    /* The job waits for the registration: otherwise its end could come before its output. */
    char gate[64], script[4096];
    snprintf(gate, sizeof gate, "/tmp/iof-formats.%d", (int)getpid());
    snprintf(script, sizeof script, "until [ -e %s ]; do sleep 0.01; done; %s", gate, args[3]);
    if (spawns && !own) {
        args[3] = script;
    }
    bool has_job = !spawns || start(args, true, true);
    if (has_job && !own) {
        pull(job, !in_init && !spawns);
    }
    FILE *opened = fopen(gate, "w");
    assert(opened != NULL && fclose(opened) == 0);
    assert(!has_job || sem_wait(&ended) == 0);
    assert(unlink(gate) == 0);
    assert(iof_tool_finalize() == IOF_SUCCESS);
    return 0;
}

int main(int argc, char **argv)
{
    bool own = argc > 1 && !strcmp(argv[1], "own");
    char **args = argv + own;
    iof_proc_t job;
    assert(argc - own >= 4);
    const char *level = args[1];
    assert(iof_Load_procid(&job, "run@7", IOF_RANK_WILDCARD) == IOF_SUCCESS);
    read_infos(args + 4);
    if (getenv("IOF_SERVER") != NULL) {
        return tool(&job, level, args, own);
    }
    bool in_init = !strcmp(level, "init"), in_job = !strcmp(level, "job"), by_tool = !strncmp(level, "tool", 4);
    iof_server_module_t module = {.spawn = grant};
    iof_status_t status = iof_server_init(&module, infos, in_init ? ninfos : 0);
    if (status != IOF_SUCCESS) {
        printf("init %d %s\n", status, iof_last_error());
        return 0;
    }
    if (!own && !by_tool) {
        pull(&job, !in_init && !in_job);
    }
    if (strcmp(level, "tool-spawn") && start(args, in_job, false)) {
        assert(iof_server_wait("run@7", NULL) == IOF_SUCCESS);
    }
    if (by_tool) {
        setenv("IOF_SERVER", iof_server_uri(), 1);
        pid_t child = fork();
        assert(child >= 0);
        if (child == 0) {
            /* The keys of the arguments were cut off their values. */
            for (char **arg = args + 4; *arg != NULL; arg++) {
                (*arg)[strlen(*arg)] = '=';
            }
            execv("/proc/self/exe", argv);
            abort();
        }
        int code;
        assert(waitpid(child, &code, 0) == child && code == 0);
    }
    assert(iof_server_finalize() == IOF_SUCCESS);
    return 0;
}
