/* The end of a tool whose call fails, and the wait for what its callbacks note under `lock`. */
#include <pmix_tool.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int registered;

static void check(pmix_status_t status, const char *what) {
    if (status != PMIX_SUCCESS && status != PMIX_OPERATION_SUCCEEDED) {
        printf("%s: %s\n", what, PMIx_Error_string(status));
        fflush(stdout);
        _exit(3);
    }
}

static void on_registered(pmix_status_t status, size_t id, void *data) {
    (void) id, (void) data;
    check(status, "register");
    pthread_mutex_lock(&lock);
    registered = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void wait_until(const int *flag) {
    pthread_mutex_lock(&lock);
    while (!*flag) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
}
