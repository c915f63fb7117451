/* Prints what a tool of PMIx finds out about a job.
 *
 * facts JOB QUESTION...
 *      KEY              the value of a key of the job
 *      KEY/RANK         the value of a key of a rank
 *      peers, nodes     what PMIx_Resolve_peers and PMIx_Resolve_nodes return
 *      query:KEY        the answer to a query without qualifiers
 *      query:KEY:NODE   that about the node with this number
 *      wait             waits for a line on stdin
 *
 * A line for each: the question, and the value or the status. */
#include <pmix_tool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pmix_proc_t self;

static void print_value(const pmix_value_t *value) {
    switch (value->type) {
    case PMIX_STRING: printf("%s", value->data.string); break;
    case PMIX_UINT32: printf("%u", value->data.uint32); break;
    case PMIX_SIZE: printf("%zu", value->data.size); break;
    case PMIX_UINT64: printf("%llu", (unsigned long long) value->data.uint64); break;
    case PMIX_UINT16: printf("%u", value->data.uint16); break;
    case PMIX_PID: printf("%d", value->data.pid); break;
    case PMIX_PROC_RANK: printf("%u", value->data.rank); break;
    case PMIX_DATA_ARRAY: printf("%zu of type %u", value->data.darray->size, value->data.darray->type); break;
    default: printf("type %u", value->type);
    }
}

static void get(const char *job, char *question) {
    pmix_value_t *value = NULL;
    pmix_proc_t proc;
    char *rank = strchr(question, '/');
    PMIX_LOAD_PROCID(&proc, job, rank == NULL ? PMIX_RANK_WILDCARD : (pmix_rank_t) atoi(rank + 1));
    printf("%s ", question);
    if (rank != NULL) {
        *rank = 0;
    }
    pmix_status_t status = PMIx_Get(&proc, question, NULL, 0, &value);
    if (status == PMIX_SUCCESS) {
        print_value(value);
        PMIX_VALUE_RELEASE(value);
    } else {
        printf("%s", PMIx_Error_string(status));
    }
    printf("\n");
}

static void query(char *question) {
    pmix_query_t *query;
    pmix_info_t *found = NULL;
    size_t count = 0;
    char *key = question + strlen("query:"), *node = strchr(key, ':');
    printf("%s ", question);
    PMIX_QUERY_CREATE(query, 1);
    if (node != NULL) {
        uint32_t number = atoi(node + 1);
        *node = 0;
        PMIX_QUERY_QUALIFIERS_CREATE(query, 1);
        PMIX_INFO_LOAD(&query->qualifiers[0], PMIX_NODEID, &number, PMIX_UINT32);
    }
    query->keys = calloc(2, sizeof *query->keys);
    query->keys[0] = strdup(key);
    pmix_status_t status = PMIx_Query_info(query, 1, &found, &count);
    if (status == PMIX_SUCCESS && count > 0) {
        print_value(&found[0].value);
    } else {
        printf("%s", PMIx_Error_string(status));
    }
    printf("\n");
}

int main(int argc, char **argv) {
    pmix_info_t info;
    pmix_proc_t *peers = NULL;
    size_t count = 0;
    char *nodes = NULL, line[16];
    /* Ends a wait of the library that would never end. */
    alarm(60);
    PMIX_INFO_LOAD(&info, PMIX_SERVER_NSPACE, "demo", PMIX_STRING);
    if (PMIx_tool_init(&self, &info, 1) != PMIX_SUCCESS) {
        return 3;
    }
    for (int n = 2; n < argc; n++) {
        if (strcmp(argv[n], "peers") == 0) {
            pmix_status_t status = PMIx_Resolve_peers(NULL, argv[1], &peers, &count);
            printf("peers %s", PMIx_Error_string(status));
            for (size_t peer = 0; status == PMIX_SUCCESS && peer < count; peer++) {
                printf(" %s:%u", peers[peer].nspace, peers[peer].rank);
            }
            printf("\n");
        } else if (strcmp(argv[n], "nodes") == 0) {
            pmix_status_t status = PMIx_Resolve_nodes(argv[1], &nodes);
            printf("nodes %s %s\n", PMIx_Error_string(status), nodes == NULL ? "" : nodes);
        } else if (strcmp(argv[n], "wait") == 0) {
            if (fgets(line, sizeof line, stdin) == NULL) {
                return 4;
            }
        } else if (strncmp(argv[n], "query:", 6) == 0) {
            query(argv[n]);
        } else {
            get(argv[1], argv[n]);
        }
        fflush(stdout);
    }
    return PMIx_tool_finalize() != PMIX_SUCCESS;
}
