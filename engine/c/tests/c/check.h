/* What several of the programs do. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iof.h>

#define CHECK(call)                                                                                        \
    do {                                                                                                   \
        int status_ = (call);                                                                              \
        if (status_ < 0) {                                                                                 \
            fprintf(stderr, "%s: %s %s\n", #call, iof_Error_string(status_), iof_last_error());             \
            abort();                                                                                       \
        }                                                                                                  \
    } while (0)

/* Runs a scenario of this program in a process of its own, connected to the engine of this process. Its
 * stdout is `to`, unless that is negative. */
static inline pid_t start(const char *scenario, int to)
{
    if (iof_server_uri()) {
        setenv("IOF_SERVER", iof_server_uri(), 1);
    }
    pid_t child = fork();
    assert(child >= 0);
    if (child == 0) {
        if (to >= 0) {
            dup2(to, 1);
        }
        execl("/proc/self/exe", "program", scenario, (char *)NULL);
        abort();
    }
    return child;
}

static inline void ends_well(pid_t child)
{
    int status;
    assert(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
