/* Loads the library, uses it as a server and as a tool, and unloads it. Its threads and
 * callbacks may end later. */
#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

typedef int init_t(void *, void *, size_t);
typedef int end_t(void);

int main(int argc, char **argv)
{
    assert(argc == 2);
    for (int round = 0; round < 3; round++) {
        void *library = dlopen(argv[1], RTLD_NOW);
        assert(library);
        init_t *init = (init_t *)dlsym(library, "iof_server_init");
        end_t *end = (end_t *)dlsym(library, "iof_server_finalize");
        assert(init && end && init(NULL, NULL, 0) == 0);
        /* In the second round the engine still runs. */
        if (round != 1) {
            assert(end() == 0);
        }
        assert(dlclose(library) == 0);
        if (round == 1) {
            usleep(20000);
            assert((library = dlopen(argv[1], RTLD_NOW)) && end() == 0 && dlclose(library) == 0);
        }
    }
    printf("done\n");
    return 0;
}
