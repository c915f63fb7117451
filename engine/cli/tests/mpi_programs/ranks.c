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

// Publishes the name of a port that all ranks look up, with which the even ranks accept the odd ones. Returns
// the sum of all ranks, once they have one communicator. MPICH 5.0.2 cannot open a port.
static int meet(int rank) {
    char port[MPI_MAX_PORT_NAME] = "port#0$of rank 0", found[MPI_MAX_PORT_NAME];
    int sum = -1, other_sum, can_connect = 0;
    MPI_Comm half, other;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    if (rank == 0) {
        can_connect = MPI_Open_port(MPI_INFO_NULL, port) == MPI_SUCCESS;
        if (MPI_Publish_name("service", MPI_INFO_NULL, port) != MPI_SUCCESS) {
            return -2;
        }
    }
    MPI_Bcast(&can_connect, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (MPI_Lookup_name("service", MPI_INFO_NULL, found) != MPI_SUCCESS ||
        MPI_Lookup_name("other", MPI_INFO_NULL, found + sizeof found / 2) == MPI_SUCCESS ||
        (rank == 0 && strcmp(found, port) != 0)) {
        return -3;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0 && (MPI_Unpublish_name("service", MPI_INFO_NULL, port) != MPI_SUCCESS ||
                      MPI_Unpublish_name("service", MPI_INFO_NULL, port) == MPI_SUCCESS)) {
        return -4;
    }
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (can_connect) {
        MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
        if (rank % 2 == 0) {
            MPI_Comm_accept(found, MPI_INFO_NULL, 0, half, &other);
        } else {
            MPI_Comm_connect(found, MPI_INFO_NULL, 0, half, &other);
        }
        MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, half);
        MPI_Allreduce(&rank, &other_sum, 1, MPI_INT, MPI_SUM, other);
        sum += other_sum;
        MPI_Comm_disconnect(&other);
    }
    return sum;
}

// Spawns a job of two programs, both this one, with three ranks, and talks to it. Returns the sum of its ranks.
static int spawn(int rank, char *program) {
    char *programs[] = {program, program}, *one[] = {"child", "a b", NULL}, *two[] = {"child", "", NULL};
    char **args[] = {one, two};
    int ranks[] = {1, 2}, codes[3], sum = -1, missing;
    MPI_Info infos[] = {MPI_INFO_NULL, MPI_INFO_NULL};
    MPI_Comm children;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    missing = MPI_Comm_spawn("/missing", MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &children, codes);
    MPI_Info_create(&infos[1]);
    MPI_Info_set(infos[1], "wdir", "/");
    // The names of jobs that have ended are given again.
    for (int round = 0; round < 3; ++round) {
        if (missing == MPI_SUCCESS || MPI_Comm_spawn_multiple(2, programs, args, ranks, infos, 0, MPI_COMM_WORLD, &children,
                                                              codes) != MPI_SUCCESS) {
            return -2;
        }
        MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, children);
        MPI_Barrier(children);
        MPI_Comm_disconnect(&children);
    }
    return sum;
}

// Talks to the parent. Returns the sum of its ranks.
static int talk(int rank) {
    int sum = -1;
    MPI_Comm parent;
    MPI_Comm_get_parent(&parent);
    if (parent == MPI_COMM_NULL) {
        return -2;
    }
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, parent);
    MPI_Barrier(parent);
    MPI_Comm_disconnect(&parent);
    return sum;
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
    } else if (strcmp(mode, "node") == 0) {
        // The ranks with which this one shares memory, as bits.
        char line[100];
        int ranks = 0, bit = 1 << rank;
        MPI_Comm node;
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
        MPI_Allreduce(&bit, &ranks, 1, MPI_INT, MPI_SUM, node);
        int length = snprintf(line, sizeof line, "rank %d: %#x\n", rank, ranks);
        if (write(1, line, (size_t)length) != length) {
            return 3;
        }
    } else if (strcmp(mode, "meet") == 0) {
        char line[100];
        int length = snprintf(line, sizeof line, "%d\n", meet(rank));
        if (write(1, line, (size_t)length) != length) {
            return 3;
        }
    } else if (strcmp(mode, "spawn") == 0 || strcmp(mode, "child") == 0) {
        char line[1000], directory[500];
        int result = strcmp(mode, "spawn") == 0 ? spawn(rank, argv[0]) : talk(rank);
        int length = snprintf(line, sizeof line, "%s %d of %d: %d, app %d, '%s' in %s\n", mode, rank, size, result,
                              has_appnum ? *appnum : -1, argc > 2 ? argv[2] : "", getcwd(directory, sizeof directory));
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
