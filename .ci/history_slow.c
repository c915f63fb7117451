/* A slow carrier of .ci/history: copies stdin to stdout in pieces of at most `slow BYTES` bytes, with a pause of 1 ms after each. */
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    char bytes[65536];
    size_t most = argc > 1 ? (size_t)atoi(argv[1]) : 1;
    for (;;) {
        ssize_t length = read(0, bytes, most < sizeof bytes ? most : sizeof bytes);
        if (length <= 0)
            return length < 0;
        for (ssize_t at = 0, written; at < length; at += written)
            if ((written = write(1, bytes + at, (size_t)(length - at))) < 0)
                return 1;
        usleep(1000);
    }
}
