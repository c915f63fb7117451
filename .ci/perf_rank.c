/* The ranks and the reader of .ci/perf. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void put(const char *bytes, size_t count) {
    while (count) {
        ssize_t written = write(1, bytes, count);
        if (written < 0) exit(1);
        bytes += written;
        count -= written;
    }
}

static int compare(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

/* write COUNT SIZE: COUNT writes of SIZE bytes with a newline at the end.
 * beat COUNT: a line with the time, each millisecond.
 * read: the median of the microseconds that such lines took. */
int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[1], "write")) {
        size_t size = strtoul(argv[3], NULL, 10);
        char *block = malloc(size);
        memset(block, 'x', size);
        block[size - 1] = '\n';
        for (long left = atol(argv[2]); left; left--) put(block, size);
    } else if (argc == 3 && !strcmp(argv[1], "beat")) {
        struct timespec pause = {0, 1000000};
        char line[32];
        for (long left = atol(argv[2]); left; left--) {
            nanosleep(&pause, NULL);
            put(line, snprintf(line, sizeof line, "%lld\n", (long long)now()));
        }
    } else if (argc == 2 && !strcmp(argv[1], "read")) {
        char line[64];
        size_t count = 0, room = 1 << 20;
        int64_t *taken = malloc(room * sizeof *taken);
        while (fgets(line, sizeof line, stdin) && count < room) taken[count++] = now() - atoll(line);
        qsort(taken, count, sizeof *taken, compare);
        if (count) printf("%.1f\n", taken[count / 2] / 1000.0);
    } else {
        return 2;
    }
    return 0;
}
