/*
 * Several session-level engines of one user.
 *
 *   engines launcher NSPACE    starts an engine with a job of this name, prints its pid, and runs
 *                              until the end of its stdin
 *   engines tool [KEY=VALUE]   calls iof_tool_init, and prints its status with the name of the
 *                              engine, or with the reason for the error
 *   engines list DIRECTORY     prints the pids of the engines in a directory
 */
#include <assert.h>
#include <iof.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int launcher(const char *nspace)
{
    char *argv[] = {"sh", "-c", "while echo; do sleep 0.1; done", NULL}; /* Ends with the engine. */
    iof_app_t app = {.cmd = "sh", .argv = argv, .maxprocs = 1};
    iof_info_t name;
    char byte;
    assert(iof_server_init(NULL, NULL, 0) == IOF_SUCCESS);
    assert(iof_Info_load(&name, IOF_NSPACE, nspace, IOF_STRING) == IOF_SUCCESS);
    assert(iof_server_spawn(&name, 1, &app, 1, NULL) == IOF_SUCCESS);
    printf("%d\n", (int)getpid());
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {
    }
    assert(iof_server_signal(nspace, 9) == IOF_SUCCESS);
    return iof_server_finalize();
}

static int tool(char *selection)
{
    iof_info_t info;
    iof_proc_t *servers;
    size_t count;
    if (selection != NULL) {
        char *value = strchr(selection, '=');
        assert(value != NULL);
        *value++ = 0;
        pid_t pid = atoi(value);
        if (!strcmp(selection, IOF_SERVER_PIDINFO)) {
            assert(iof_Info_load(&info, selection, &pid, IOF_PID) == IOF_SUCCESS);
        } else {
            assert(iof_Info_load(&info, selection, value, IOF_STRING) == IOF_SUCCESS);
        }
    }
    iof_status_t status = iof_tool_init(NULL, &info, selection != NULL);
    if (status != IOF_SUCCESS) {
        printf("%s\n%s\n", iof_Error_string(status), iof_last_error());
        return 0;
    }
    assert(iof_tool_get_servers(&servers, &count) == IOF_SUCCESS && count == 1);
    printf("connected\n%s\n", servers[0].nspace);
    free(servers);
    return iof_tool_finalize();
}

static int list(const char *directory)
{
    char *keys[] = {IOF_QUERY_AVAIL_SERVERS, NULL};
    iof_query_t query = {.keys = keys};
    iof_info_t infos[2], *results;
    size_t count;
    assert(iof_Info_load(&infos[0], IOF_TOOL_DO_NOT_CONNECT, NULL, IOF_BOOL) == IOF_SUCCESS);
    assert(iof_Info_load(&infos[1], IOF_SERVER_TMPDIR, directory, IOF_STRING) == IOF_SUCCESS);
    assert(iof_tool_init(NULL, infos, 2) == IOF_SUCCESS);
    assert(iof_Query_info(&query, 1, &results, &count) == IOF_SUCCESS && count == 1);
    iof_data_array_t *servers = results[0].value.data.darray;
    printf("pids\n");
    for (size_t i = 0; i < servers->size; i++) {
        iof_data_array_t *fields = ((iof_info_t *)servers->array)[i].value.data.darray;
        iof_info_t *field = fields->array;
        for (size_t j = 0; j < fields->size; j++) {
            if (IOF_CHECK_KEY(&field[j], IOF_SERVER_PIDINFO)) {
                printf("%d\n", (int)field[j].value.data.pid);
            }
        }
    }
    iof_Info_free(results, count);
    return iof_tool_finalize();
}

int main(int argc, char **argv)
{
    assert(argc > 1);
    if (strcmp(argv[1], "list") == 0) {
        return list(argv[2]);
    }
    return strcmp(argv[1], "launcher") == 0 ? launcher(argv[2]) : tool(argv[2]);
}
