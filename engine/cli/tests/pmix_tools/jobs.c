/* Embeds the engine, and runs a job named demo until the end of its stdin.
 *
 *     jobs IOF [DIRECTORY]
 *
 * With a directory, it is the system-level engine there. It denies pulls of stderr, and can spawn with
 * an attribute of its own.
 * A line on its stdin begins another job, named late, with two ranks. The next one ends it.
 */
#include <iof.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static void check(iof_status_t status, const char *what) {
    if (status < 0) {
        fprintf(stderr, "%s: %s %s\n", what, iof_Error_string(status), iof_last_error());
        exit(3);
    }
}

static iof_status_t pull(const iof_proc_t *procs, size_t nprocs, const iof_info_t *directives, size_t ndirs,
                         iof_iof_channel_t channels, iof_op_cbfunc_t cbfunc, void *cbdata) {
    (void) procs, (void) nprocs, (void) directives, (void) ndirs, (void) cbfunc, (void) cbdata;
    return channels & IOF_FWD_STDERR_CHANNEL ? IOF_ERR_NO_PERMISSIONS : IOF_OPERATION_SUCCEEDED;
}

static iof_status_t query(iof_proc_t *proct, iof_query_t *queries, size_t nqueries, iof_info_cbfunc_t cbfunc,
                          void *cbdata) {
    iof_info_t info;
    (void) proct, (void) queries, (void) nqueries;
    check(iof_Info_load(&info, IOF_QUERY_SPAWN_SUPPORT, "vendor.colour", IOF_STRING), "answer");
    cbfunc(IOF_SUCCESS, &info, 1, cbdata, NULL, NULL);
    iof_Value_destruct(&info.value);
    return IOF_SUCCESS;
}

static void spawn(const char *name, const char *iof) {
    char *command[] = {"sleep", "60", NULL};
    iof_app_t app = {.cmd = "sleep", .argv = command, .maxprocs = 2};
    iof_info_t infos[3];
    iof_Info_load(&infos[0], IOF_NSPACE, name, IOF_STRING);
    iof_Info_load(&infos[1], IOF_MPI, "pmix", IOF_STRING);
    iof_Info_load(&infos[2], IOF_PMIX_TOOLS, iof, IOF_STRING);
    check(iof_server_spawn(infos, 3, &app, 1, NULL), "spawn");
    for (int n = 0; n < 3; n++) {
        iof_Value_destruct(&infos[n].value);
    }
}

static void end(const char *name) {
    int code;
    check(iof_server_signal(name, SIGKILL), "signal");
    check(iof_server_wait(name, &code), "wait");
}

int main(int argc, char **argv) {
    char line[16];
    if (argc < 2) {
        fprintf(stderr, "usage: jobs IOF [DIRECTORY]\n");
        return 2;
    }
    iof_info_t infos[3];
    bool yes = true;
    iof_server_module_t module = {.iof_pull = pull, .query = query};
    iof_Info_load(&infos[0], IOF_HOST_QUERIES, IOF_QUERY_SPAWN_SUPPORT, IOF_STRING);
    if (argc > 2) {
        iof_Info_load(&infos[1], IOF_SERVER_SYSTEM_SUPPORT, &yes, IOF_BOOL);
        iof_Info_load(&infos[2], IOF_SYSTEM_TMPDIR, argv[2], IOF_STRING);
    }
    check(iof_server_init(&module, infos, argc > 2 ? 3 : 1), "init");
    spawn("demo", argv[1]);
    for (int late = 1; fgets(line, sizeof line, stdin) != NULL; late = !late) {
        if (late) {
            spawn("late", argv[1]);
        } else {
            end("late");
        }
        printf("done\n");
        fflush(stdout);
    }
    end("demo");
    check(iof_server_finalize(), "finalize");
    return 0;
}
