/* A program of PMIx that no server has started: a job of its own with one rank. Prints what each
 * call returns. Compiled against the system's pmix.h, and run with the system's library and with
 * libiof-pmix. */
#include <pmix.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

static void show(const char *text, pmix_status_t status)
{
    printf("%s: %d\n", text, status);
}

static void get(const pmix_proc_t *proc, const char *key)
{
    pmix_value_t *value = NULL;
    pmix_status_t status = PMIx_Get(proc, key, NULL, 0, &value);
    printf("%s of %d: %d", key, (int)proc->rank, status);
    if (status == PMIX_SUCCESS) {
        switch (value->type) {
        case PMIX_STRING: printf(" string %s", value->data.string); break;
        case PMIX_UINT16: printf(" uint16 %u", value->data.uint16); break;
        case PMIX_UINT32: printf(" uint32 %u", value->data.uint32); break;
        /* PMIX_RANK is a rank in the Standard, and an int in PMIx 4. */
        case PMIX_PROC_RANK:
        case PMIX_INT: printf(" rank %d", value->data.integer); break;
        default: printf(" type %d", value->type);
        }
        PMIX_VALUE_RELEASE(value);
    }
    printf("\n");
}

static _Atomic int answers;

static void received(pmix_status_t status, pmix_value_t *value, void *cbdata)
{
    printf("%s received: %d", (char *)cbdata, status);
    if (value && value->type == PMIX_UINT32) {
        printf(" uint32 %u", value->data.uint32);
    } else if (value && value->type == PMIX_STRING) {
        printf(" string %s", value->data.string);
    }
    printf("\n");
    answers++;
}

/* Gets a value with a callback, which the system's library calls on its own thread. */
static void get_nb(const pmix_proc_t *proc, char *key)
{
    int before = answers;
    pmix_status_t status = PMIx_Get_nb(proc, key, NULL, 0, received, key);
    while (status == PMIX_SUCCESS && answers == before) {
        poll(NULL, 0, 1);
    }
    show(key, status);
}

static void done(pmix_status_t status, void *cbdata)
{
    (void)cbdata;
    show("done", status);
}

int main(void)
{
    pmix_proc_t self, all, other;
    pmix_value_t value, *none;
    memset(&self, 0, sizeof self);
    show("fence before init", PMIx_Fence(NULL, 0, NULL, 0));
    show("get before init", PMIx_Get(&self, PMIX_JOB_SIZE, NULL, 0, &none));
    show("get with a callback before init", PMIx_Get_nb(&self, PMIX_JOB_SIZE, NULL, 0, received, NULL));
    show("fence with a callback before init", PMIx_Fence_nb(NULL, 0, NULL, 0, done, NULL));
    show("init", PMIx_Init(&self, NULL, 0));
    printf("initialized %d\n", PMIx_Initialized());
    /* The host and the pid follow. */
    printf("name %.10s %u\n", self.nspace, self.rank);
    show("second init", PMIx_Init(&other, NULL, 0));
    printf("same name %d\n", !strcmp(self.nspace, other.nspace) && other.rank == self.rank);
    PMIX_LOAD_PROCID(&all, self.nspace, PMIX_RANK_WILDCARD);
    PMIX_LOAD_PROCID(&other, "other", 0);
    const char *of_job[] = {PMIX_JOB_SIZE, PMIX_UNIV_SIZE, PMIX_LOCAL_SIZE, PMIX_NODE_SIZE, PMIX_MAX_PROCS,
                            PMIX_JOB_NUM_APPS, PMIX_NUM_NODES, PMIX_LOCAL_PEERS};
    for (size_t index = 0; index < sizeof of_job / sizeof *of_job; index++) {
        get(&all, of_job[index]);
    }
    const char *of_rank[] = {PMIX_RANK, PMIX_LOCAL_RANK, PMIX_NODE_RANK, PMIX_GLOBAL_RANK, PMIX_APP_RANK, PMIX_APPNUM};
    for (size_t index = 0; index < sizeof of_rank / sizeof *of_rank; index++) {
        get(&self, of_rank[index]);
    }
    get(&self, "no.such.key");
    get(&other, PMIX_JOB_SIZE);
    get_nb(&all, PMIX_JOB_SIZE);
    get_nb(&self, "no.such.key");
    get_nb(&other, PMIX_JOB_SIZE);
    show("get without callback", PMIx_Get_nb(&all, PMIX_JOB_SIZE, NULL, 0, NULL, NULL));
    PMIX_VALUE_LOAD(&value, "text", PMIX_STRING);
    show("put", PMIx_Put(PMIX_GLOBAL, "a.key", &value));
    PMIX_VALUE_DESTRUCT(&value);
    show("commit", PMIx_Commit());
    show("fence", PMIx_Fence(NULL, 0, NULL, 0));
    show("fence of the job", PMIx_Fence(&all, 1, NULL, 0));
    show("fence with a callback", PMIx_Fence_nb(&all, 1, NULL, 0, done, NULL));
    get(&self, "a.key");
    get_nb(&self, "a.key");
    show("finalize", PMIx_Finalize(NULL, 0));
    printf("initialized %d\n", PMIx_Initialized());
    show("last finalize", PMIx_Finalize(NULL, 0));
    printf("initialized %d\n", PMIx_Initialized());
    return 0;
}
