/*
 * A minimal launcher in C, the counterpart of launcher.rs.
 *
 *     engine/c/install /tmp/iof
 *     export PKG_CONFIG_PATH=/tmp/iof/lib/pkgconfig LD_LIBRARY_PATH=/tmp/iof/lib
 *     cc engine/server/examples/launcher.c -o launcher $(pkg-config --cflags --libs iof)
 *     ./launcher 4 sh -c 'echo hello from rank $IOF_RANK'
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <iof.h>

/* Exits with a message if `status` is an error. `what` describes the failure. */
static void check(const char *what, iof_status_t status)
{
    if (status < 0) {
        fprintf(stderr, "launcher: %s: %s %s\n", what, iof_Error_string(status), iof_last_error());
        exit(1);
    }
}

int main(int argc, char **argv)
{
    iof_app_t app = {0};
    iof_info_t drop_none, spawn[2];
    iof_proc_t all;
    iof_rank_t first = 0;
    iof_iof_channel_t outputs = IOF_FWD_STDOUT_CHANNEL | IOF_FWD_STDERR_CHANNEL | IOF_FWD_STDDIAG_CHANNEL;
    char nspace[IOF_MAX_NSLEN + 1];
    int exit_code = 1;

    if (argc < 3 || (app.maxprocs = atoi(argv[1])) < 1) {
        fprintf(stderr, "usage: launcher N PROG ARGS...\n");
        return 2;
    }
    app.cmd = argv[2];
    app.argv = argv + 2;
    snprintf(nspace, sizeof nspace, "launcher-%d", (int)getpid());

    /* Ranks wait while our stdout is slower than they are, so that no output is lost (the default). With NULL, a bool is
     * true. */
    iof_Info_load(&drop_none, IOF_DROP_NONE, NULL, IOF_BOOL);
    check("cannot start the engine", iof_server_init(NULL, &drop_none, 1));

    /* Register before the ranks start. Without a callback, the library writes their output to our stdout and stderr. */
    iof_Load_procid(&all, nspace, IOF_RANK_WILDCARD);
    check("cannot read the output", iof_IOF_pull(&all, 1, NULL, 0, outputs, NULL, NULL, NULL));

    /* Name the job, and let rank 0 inherit our stdin. */
    iof_Info_load(&spawn[0], IOF_NSPACE, nspace, IOF_STRING);
    iof_Info_load(&spawn[1], IOF_STDIN_INHERIT, &first, IOF_PROC_RANK);
    check("cannot start the job", iof_server_spawn(spawn, 2, &app, 1, NULL));
    iof_Value_destruct(&spawn[0].value);

    /* Wait until every rank has ended and we have received its output. Then write what remains of it. */
    check("cannot wait for the job", iof_server_wait(nspace, &exit_code));
    check("cannot end the engine", iof_server_finalize());
    return exit_code;
}
