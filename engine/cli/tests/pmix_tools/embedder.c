/* The counterpart of examples/embedder.rs with the C library.
 *
 *     embedder IOF PROGRAM ARGS...
 *
 * It runs on without an engine until the end of its stdin.
 */
#include <iof.h>
#include <stdio.h>
#include <stdlib.h>

static void check(iof_status_t status, const char *what) {
    if (status < 0) {
        fprintf(stderr, "%s: %s %s\n", what, iof_Error_string(status), iof_last_error());
        exit(3);
    }
}

int main(int argc, char **argv) {
    iof_info_t infos[3];
    iof_app_t app = {.maxprocs = 2};
    int code = 1;
    if (argc < 3) {
        fprintf(stderr, "usage: embedder IOF PROGRAM ARGS...\n");
        return 2;
    }
    app.cmd = argv[2];
    app.argv = argv + 2;
    check(iof_server_init(NULL, NULL, 0), "init");
    iof_Info_load(&infos[0], IOF_NSPACE, "demo", IOF_STRING);
    iof_Info_load(&infos[1], IOF_MPI, "pmix", IOF_STRING);
    iof_Info_load(&infos[2], IOF_PMIX_TOOLS, argv[1], IOF_STRING);
    check(iof_server_spawn(infos, 3, &app, 1, NULL), "spawn");
    for (int n = 0; n < 3; n++) {
        iof_Value_destruct(&infos[n].value);
    }
    check(iof_server_wait("demo", &code), "wait");
    check(iof_server_finalize(), "finalize");
    while (getchar() != EOF) {
    }
    return code;
}
