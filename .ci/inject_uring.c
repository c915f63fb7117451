/* A library of .ci/inject for LD_PRELOAD: wraps the io_uring of a process, and changes the nth answer of one kind.
 *
 * INJECT_TRACE names a file to which each request is appended, as `PID KIND NUMBER`. INJECT_ANSWER is `KIND NUMBER RESULT`, and
 * `KIND NUMBER+ RESULT` for all from there on. The kinds are read, write, poll, timeout and cancel. A request with a negative
 * RESULT becomes a no-op with this answer, so that it moves no byte (from Linux 6.10 on); one with a positive RESULT moves at most
 * so many. With cancel, the request that is cancelled gets the answer.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define INJECT_RESULT 1u /* IORING_NOP_INJECT_RESULT */

/* The io_uring of the capture, of which a process has one. */
static int ring = -1, is_endless;
static struct io_uring_params params;
static struct io_uring_sqe *requests;
static char *queues[2];
static unsigned submitted, seen, wanted, counts[IORING_OP_LAST], kind = IORING_OP_LAST;
static int result, trace = -1;
static unsigned long long cancelled;

static const char *name_of(unsigned opcode)
{
    return opcode == IORING_OP_READ ? "read" : opcode == IORING_OP_WRITE ? "write" : opcode == IORING_OP_POLL_ADD ? "poll" :
           opcode == IORING_OP_TIMEOUT ? "timeout" : opcode == IORING_OP_ASYNC_CANCEL ? "cancel" : "other";
}

static void set_up(void)
{
    const char *file = getenv("INJECT_TRACE"), *answer = getenv("INJECT_ANSWER");
    char word[16], plus;
    if (file)
        trace = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (answer && sscanf(answer, "%15s %u%c %d", word, &wanted, &plus, &result) == 4)
        for (kind = 0, is_endless = plus == '+'; kind < IORING_OP_LAST && strcmp(name_of(kind), word); kind++)
            continue;
}

static unsigned *word_at(int queue, unsigned offset)
{
    return (unsigned *)(queues[queue] + offset);
}

static void change(struct io_uring_sqe *request)
{
    unsigned opcode = request->opcode, number = ++counts[opcode];
    char line[64];
    int is_wanted = opcode == kind && (number == wanted || (is_endless && number > wanted));
    int length = snprintf(line, sizeof line, "%d %s %u%s\n", (int)getpid(), name_of(opcode), number, is_wanted ? " (INJECTED)" : "");
    if (trace >= 0 && write(trace, line, (size_t)length) != length)
        _exit(99);
    if (!is_wanted)
        return;
    if (opcode == IORING_OP_ASYNC_CANCEL) {
        cancelled = request->addr;
    } else if (result > 0) {
        request->len = (unsigned)result;
    } else {
        unsigned long long token = request->user_data;
        memset(request, 0, sizeof *request);
        request->opcode = IORING_OP_NOP;
        request->rw_flags = INJECT_RESULT;
        request->len = (unsigned)result;
        request->user_data = token;
    }
}

void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
    void *map = (void *)syscall(SYS_mmap, address, length, protection, flags, fd, offset);
    if (ring >= 0 && fd == ring && map != MAP_FAILED) {
        if (offset == (off_t)IORING_OFF_SQES)
            requests = map;
        else
            queues[offset == (off_t)IORING_OFF_CQ_RING] = map;
        if (offset == (off_t)IORING_OFF_SQ_RING && params.features & IORING_FEAT_SINGLE_MMAP)
            queues[1] = map;
    }
    return map;
}

static void before_enter(void)
{
    unsigned tail = __atomic_load_n(word_at(0, params.sq_off.tail), __ATOMIC_ACQUIRE);
    for (; submitted != tail; submitted++)
        change(&requests[word_at(0, params.sq_off.array)[submitted & (params.sq_entries - 1)]]);
}

static void after_enter(void)
{
    unsigned tail = __atomic_load_n(word_at(1, params.cq_off.tail), __ATOMIC_ACQUIRE);
    struct io_uring_cqe *answers = (struct io_uring_cqe *)(queues[1] + params.cq_off.cqes);
    for (; seen != tail; seen++) {
        struct io_uring_cqe *answer = &answers[seen & (params.cq_entries - 1)];
        if (cancelled && answer->user_data == cancelled) {
            if (answer->res == -125)
                answer->res = result;
            cancelled = 0;
        }
    }
}

long syscall(long number, ...)
{
    static long (*real)(long, ...);
    long arguments[6], returned;
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        arguments[i] = va_arg(list, long);
    va_end(list);
    if (!real)
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    int is_enter = number == SYS_io_uring_enter && (int)arguments[0] == ring && requests;
    if (is_enter)
        before_enter();
    returned = real(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
    if (is_enter)
        after_enter();
    if (number == SYS_io_uring_setup && returned >= 0 && ring < 0) {
        ring = (int)returned;
        params = *(struct io_uring_params *)arguments[1];
        set_up();
    }
    return returned;
}
