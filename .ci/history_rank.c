/* A rank of .ci/history: performs the operations of DIR/plan.RANK, and logs in DIR/log.RANK what it wrote.
 *
 * Operations: `w CHANNEL BYTES` writes the next bytes of DIR/data.RANK.CHANNEL, `s MS` sleeps, `x CODE` exits, `k SIGNAL`
 * kills itself. The log has `w CHANNEL OFFSET BYTES CRC32` before each write(2) and `r RESULT` after it, so that a rank
 * that is killed between them has written up to BYTES of this write. `p PID` is its first line; `x` and `k` are as above.
 * Under torchrun, RANK is the number of attempts before, times the number of workers, plus the worker's rank.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const names[3] = {"stdout", "stderr", "stddiag"};
static const char *data[3];
static size_t offsets[3];
static int fds[3] = {1, 2, -1}, log_fd;

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
#include <stdarg.h>
static void note(const char *format, ...)
{
    char line[128];
    va_list list;
    va_start(list, format);
    int length = vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (write(log_fd, line, (size_t)length) != length)
        _exit(99);
}

static uint32_t crc32(const char *bytes, size_t length)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < length; i++) {
        crc ^= (uint8_t)bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

static void write_all(int channel, size_t length)
{
    while (length > 0) {
        const char *bytes = data[channel] + offsets[channel];
        note("w %s %zu %zu %u\n", names[channel], offsets[channel], length, crc32(bytes, length));
        ssize_t written = write(fds[channel], bytes, length);
        note("r %zd\n", written < 0 ? -errno : written);
        if (written < 0 && errno != EINTR)
            _exit(98);
        offsets[channel] += written < 0 ? 0 : (size_t)written;
        length -= written < 0 ? 0 : (size_t)written;
    }
}

int main(int argc, char **argv)
{
    char path[4096], operation, name[16], number[16];
    const char *rank = getenv("IOF_RANK"), *diag = getenv("IOF_STDDIAG_FD"), *attempt = getenv("TORCHELASTIC_RESTART_COUNT");
    if (attempt && getenv("RANK") && getenv("WORLD_SIZE")) {
        snprintf(number, sizeof number, "%d", atoi(attempt) * atoi(getenv("WORLD_SIZE")) + atoi(getenv("RANK")));
        rank = number;
    }
    if (argc != 2 || !rank)
        return 97;
    fds[2] = diag ? atoi(diag) : -1;
    snprintf(path, sizeof path, "%s/log.%s", argv[1], rank);
    log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    note("p %d\n", (int)getpid());
    for (int channel = 0; channel < 3; channel++) {
        struct stat status;
        snprintf(path, sizeof path, "%s/data.%s.%s", argv[1], rank, names[channel]);
        int fd = open(path, O_RDONLY);
        if (fd < 0 || fstat(fd, &status))
            return 97;
        data[channel] = status.st_size ? mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : "";
        close(fd);
    }
    snprintf(path, sizeof path, "%s/plan.%s", argv[1], rank);
    FILE *plan = fopen(path, "r");
    while (plan && fscanf(plan, " %c", &operation) == 1) {
        unsigned long number;
        if (operation == 'w' && fscanf(plan, "%15s %lu", name, &number) == 2) {
            for (int channel = 0; channel < 3; channel++)
                if (!strcmp(name, names[channel]))
                    write_all(channel, number);
        } else if (fscanf(plan, "%lu", &number) != 1) {
            return 97;
        } else if (operation == 's') {
            usleep((useconds_t)number * 1000);
        } else if (operation == 'x') {
            note("x %lu\n", number);
            _exit((int)number);
        } else if (operation == 'k') {
            note("k %lu\n", number);
            kill(getpid(), (int)number);
        }
    }
    return 97;
}
