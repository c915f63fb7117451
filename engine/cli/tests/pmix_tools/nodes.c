// A rank of a job on several nodes: what it learns of the nodes, and what the others have put.
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pmix_proc_t own;

static pmix_value_t *get(unsigned rank, const char *key) {
    pmix_proc_t proc;
    pmix_value_t *value = NULL;
    PMIX_LOAD_PROCID(&proc, own.nspace, rank);
    pmix_status_t status = PMIx_Get(&proc, key, NULL, 0, &value);
    if (status != PMIX_SUCCESS) {
        printf("%u: %s of %u: %d\n", own.rank, key, rank, status);
        exit(3);
    }
    return value;
}

static void put(const char *key, unsigned number) {
    pmix_value_t value;
    char text[64];
    snprintf(text, sizeof text, "%s %u of %u", key, number, own.rank);
    value.type = PMIX_STRING;
    value.data.string = text;
    if (PMIx_Put(PMIX_GLOBAL, key, &value) != PMIX_SUCCESS || PMIx_Commit() != PMIX_SUCCESS) {
        exit(4);
    }
}

static void fence(int collects, const pmix_proc_t *procs, size_t count) {
    pmix_info_t info;
    bool collect = collects;
    PMIX_INFO_LOAD(&info, PMIX_COLLECT_DATA, &collect, PMIX_BOOL);
    pmix_status_t status = PMIx_Fence(procs, count, &info, 1);
    if (status != PMIX_SUCCESS) {
        printf("%u: fence: %d\n", own.rank, status);
        exit(5);
    }
}

int main(void) {
    if (PMIx_Init(&own, NULL, 0) != PMIX_SUCCESS) {
        return 2;
    }
    unsigned size = get(PMIX_RANK_WILDCARD, PMIX_JOB_SIZE)->data.uint32, next = (own.rank + 1) % size;
    printf("%u: node %u, %s, local %u of %u, peers %s\n", own.rank, get(own.rank, PMIX_NODEID)->data.uint32,
           get(own.rank, PMIX_HOSTNAME)->data.string, get(own.rank, PMIX_LOCAL_RANK)->data.uint16,
           get(PMIX_RANK_WILDCARD, PMIX_LOCAL_SIZE)->data.uint32,
           get(PMIX_RANK_WILDCARD, PMIX_LOCAL_PEERS)->data.string);
    // With the values of all ranks.
    put("collected", 1);
    fence(1, NULL, 0);
    printf("%u: %s, on %s\n", own.rank, get(next, "collected")->data.string, get(next, PMIX_HOSTNAME)->data.string);
    // Without: the values of each rank are requested of its node.
    put("asked", 2);
    fence(0, NULL, 0);
    printf("%u: %s\n", own.rank, get(next, "asked")->data.string);
    // Fences of some ranks of both nodes.
    pmix_proc_t some[2];
    PMIX_LOAD_PROCID(&some[0], own.nspace, size - 1);
    PMIX_LOAD_PROCID(&some[1], own.nspace, 0);
    for (int i = 0; i < 3 && (own.rank == 0 || own.rank == size - 1); i++) {
        fence(i == 1, some, 2);
    }
    fence(0, NULL, 0);
    return PMIx_Finalize(NULL, 0) == PMIX_SUCCESS ? 0 : 6;
}
