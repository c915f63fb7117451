// A program for the tests of MPI: `ranks MODE`.
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Writes `length` bytes of a sequence that depends on the rank, in lines of varying length.
static void write_sequence(int rank, long long length) {
    uint64_t state = 0x9e3779b97f4a7c15u * (uint64_t)(rank + 1);
    static char bytes[1 << 16];
    while (length > 0) {
        size_t count = length < (long long)sizeof bytes ? (size_t)length : sizeof bytes;
        for (size_t i = 0; i < count; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            unsigned value = (unsigned)(state >> 56);
            bytes[i] = value < 4 ? '\n' : (char)('!' + value % 90);
        }
        for (size_t done = 0; done < count;) {
            ssize_t written = write(1, bytes + done, count - done);
            if (written <= 0) {
                exit(3);
            }
            done += (size_t)written;
        }
        length -= (long long)count;
    }
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "hello";
    if (strcmp(mode, "sequence") == 0) {
        // The same bytes as in mode "output", without MPI.
        write_sequence(atoi(argv[2]), atoll(argv[3]));
        return 0;
    }
    int rank, size, sum = 0, *appnum, has_appnum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &appnum, &has_appnum);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (strcmp(mode, "hello") == 0) {
        char line[100];
        int length = snprintf(line, sizeof line, "rank %d of %d, app %d, sum %d\n", rank, size, has_appnum ? *appnum : -1, sum);
        if (write(1, line, (size_t)length) != length) {
            return 3;
        }
    } else if (strcmp(mode, "abort") == 0 && rank == 1) {
        MPI_Abort(MPI_COMM_WORLD, 7);
    } else if (strcmp(mode, "killed") == 0 && rank == 1) {
        raise(SIGKILL);
    } else if (strcmp(mode, "leave") == 0 && rank == 1) {
        _exit(0);
    } else if (strcmp(mode, "output") == 0) {
        write_sequence(rank, atoll(argv[2]));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
