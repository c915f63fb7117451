/* Writes numbered lines at intervals through a buffer, as an ordinary program does behind a pipe.
 *
 *     lines LINES MICROSECONDS stdio       the C library's buffer for pipes
 *     lines LINES MICROSECONDS setvbuf N   a buffer of N bytes of the C library
 *     lines LINES MICROSECONDS own N       a buffer of N bytes that is written when it is full
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char *buffer;
static size_t size, used;

static void flush(void) {
    for (size_t done = 0; done < used;) {
        ssize_t written = write(1, buffer + done, used - done);
        if (written < 0) exit(1);
        done += (size_t)written;
    }
    used = 0;
}

static void put(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        buffer[used++] = text[i];
        if (used == size) flush();
    }
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    long lines = atol(argv[1]), pause = atol(argv[2]);
    struct timespec interval = {pause / 1000000, pause % 1000000 * 1000};
    int is_own = strcmp(argv[3], "own") == 0;
    size = argc > 4 ? (size_t)atol(argv[4]) : 0;
    buffer = size > 0 ? malloc(size) : NULL;
    if (size > 0 && !is_own) setvbuf(stdout, buffer, _IOFBF, size);
    const char *rank = getenv("IOF_RANK");
    for (long line = 1; line <= lines; line++) {
        char text[160];
        int length = snprintf(text, sizeof text, "rank %s line %ld \xc2\xb5 of a length that no buffer is a multiple of END\n",
                              rank != NULL ? rank : "0", line);
        if (is_own) put(text, (size_t)length);
        else fwrite(text, 1, (size_t)length, stdout);
        if (pause > 0) nanosleep(&interval, NULL);
    }
    if (is_own) flush();
    return 0;
}
