/* A tool of PMIx: attaches to a server, and does one thing.
 *
 * tool pid:PID|nspace:NAME|system: namespaces
 * tool ... table JOB                        rank, pid, state and program of each process
 * tool ... status JOB
 * tool ... query KEY
 * tool ... pull JOB RANK|all CHANNELS MODE  until the job's end; CHANNELS is a sum of 2, 4 and 8
 *      print: the output; count: bytes, losses and ends of streams; sum: checks numbered lines
 *      stall: receives nothing after the first bytes, until a line on stdin
 * tool ... pulls JOB RANK RANK              pulls both, the first of which is refused, until the job's end
 * tool ... print JOB                        libpmix itself writes the output
 * tool ... stop JOB                         pulls, deregisters after the first bytes, and pulls again
 * tool ... held JOB                          pulls stdout and stderr with a buffer that they do not fill,
 *                                           and deregisters them, each after a line on stdin
 * tool ... push JOB RANK TEXT...            then closes the stdin
 * tool ... stdin JOB RANK                   libpmix itself pushes the tool's stdin
 * tool ... log CHANNEL TEXT
 * tool ... end JOB                          waits for the job's end
 * tool ... spawn RANKS CACHE KEY SCRIPT      spawns sh -c SCRIPT, with this size of its cache unless it is 0,
 *                                           and with this key, which is false if it begins with -; pulls
 *                                           after a line on stdin, or the job has ended if that is closed
 * tool rank                                 is a rank, not a tool: connects to its server, and ends
 * tool processors                           is a rank: its processors, their place, and whether the
 *                                           topology of the node is shared
 */
#include "wait.h"

#include <stdlib.h>
#include <string.h>

static int ended, stalls, prints, deliveries;
static unsigned long long bytes, lost, streams;
static int exit_code = -1, completed;
static pmix_status_t completion;

static void on_output(size_t handler, pmix_iof_channel_t channel, pmix_proc_t *source, pmix_byte_object_t *payload,
                      pmix_info_t *infos, size_t count) {
    (void) handler;
    pthread_mutex_lock(&lock);
    for (size_t n = 0; n < count; n++) {
        if (strcmp(infos[n].key, "iof.lost") == 0) {
            lost += infos[n].value.type == PMIX_UINT32 ? infos[n].value.data.uint32 : infos[n].value.data.uint64;
        }
        streams += strcmp(infos[n].key, PMIX_IOF_COMPLETE) == 0;
    }
    if (payload != NULL && payload->size > 0) {
        deliveries++;
        bytes += payload->size;
        if (prints) {
            printf("%u %u: %.*s", source->rank, channel, (int) payload->size, payload->bytes);
            fflush(stdout);
        }
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (stalls && deliveries == 1) {
        char line[16];
        printf("stalled\n");
        fflush(stdout);
        if (fgets(line, sizeof line, stdin) == NULL) {
            _exit(4);
        }
    }
}

static void on_event(size_t handler, pmix_status_t status, const pmix_proc_t *source, pmix_info_t *infos, size_t count,
                     pmix_info_t *results, size_t result_count, pmix_event_notification_cbfunc_fn_t done, void *data) {
    (void) handler, (void) source, (void) results, (void) result_count;
    pthread_mutex_lock(&lock);
    for (size_t n = 0; n < count; n++) {
        if (strcmp(infos[n].key, PMIX_EXIT_CODE) == 0) {
            exit_code = infos[n].value.data.integer;
        }
    }
    ended = status == PMIX_EVENT_JOB_END ? 1 : 2;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (done != NULL) {
        done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, data);
    }
}

static void register_events(void) {
    pmix_status_t codes[] = {PMIX_EVENT_JOB_END, PMIX_ERR_LOST_CONNECTION};
    PMIx_Register_event_handler(codes, 2, NULL, 0, on_event, on_registered, NULL);
    wait_until(&registered);
}

static size_t pull(const char *job, const char *rank, int channels, pmix_iof_cbfunc_t function) {
    pmix_proc_t proc;
    PMIX_LOAD_PROCID(&proc, job, strcmp(rank, "all") == 0 ? PMIX_RANK_WILDCARD : (pmix_rank_t) atoi(rank));
    pmix_status_t id = PMIx_IOF_pull(&proc, 1, NULL, 0, channels, function, NULL, NULL);
    if (id < 0) {
        check(id, "pull");
    }
    printf("pulled\n");
    fflush(stdout);
    return id;
}

static size_t pull_buffered(const char *job, int channel) {
    pmix_proc_t proc;
    pmix_info_t info;
    uint32_t size = 100000;
    PMIX_LOAD_PROCID(&proc, job, PMIX_RANK_WILDCARD);
    PMIX_INFO_LOAD(&info, PMIX_IOF_BUFFERING_SIZE, &size, PMIX_UINT32);
    pmix_status_t id = PMIx_IOF_pull(&proc, 1, &info, 1, channel, NULL, NULL, NULL);
    if (id < 0) {
        check(id, "pull");
    }
    return id;
}

static void query(const char *key, const char *job) {
    pmix_query_t *query;
    pmix_info_t *found = NULL;
    size_t count = 0;
    PMIX_QUERY_CREATE(query, 1);
    query->keys = calloc(2, sizeof *query->keys);
    query->keys[0] = strdup(key);
    if (job != NULL) {
        PMIX_QUERY_QUALIFIERS_CREATE(query, 1);
        PMIX_INFO_LOAD(&query->qualifiers[0], PMIX_NSPACE, job, PMIX_STRING);
    }
    check(PMIx_Query_info(query, 1, &found, &count), "query");
    for (size_t n = 0; n < count; n++) {
        pmix_value_t *value = &found[n].value;
        if (value->type == PMIX_STRING) {
            printf("%s\n", value->data.string);
        } else if (value->type == PMIX_STATUS) {
            printf("%d\n", value->data.status);
        } else if (value->type == PMIX_DATA_ARRAY && value->data.darray->type == PMIX_PROC_INFO) {
            pmix_proc_info_t *procs = value->data.darray->array;
            for (size_t m = 0; m < value->data.darray->size; m++) {
                printf("%s %u %d %d %s\n", procs[m].proc.nspace, procs[m].proc.rank, procs[m].pid, procs[m].state,
                       procs[m].executable_name);
            }
        } else {
            printf("%s of type %d\n", found[n].key, value->type);
        }
    }
    PMIX_INFO_FREE(found, count);
}

/* The forms without a callback of PMIx_IOF_push (libpmix 4.2.2) and of PMIx_IOF_deregister (4 and 5)
 * use memory that they have freed. */
static void on_completed(pmix_status_t status, void *data) {
    (void) data;
    pthread_mutex_lock(&lock);
    completed = 1;
    completion = status;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void push_one(pmix_proc_t *proc, pmix_byte_object_t *object, pmix_info_t *info, size_t count) {
    completed = 0;
    check(PMIx_IOF_push(proc, 1, object, info, count, on_completed, NULL), "push");
    wait_until(&completed);
    check(completion, "pushed");
}

static void deregister(size_t id) {
    completed = 0;
    check(PMIx_IOF_deregister(id, NULL, 0, on_completed, NULL), "deregister");
    wait_until(&completed);
    check(completion, "deregistered");
}

static void push(const char *job, const char *rank, int count, char **texts) {
    pmix_proc_t proc;
    PMIX_LOAD_PROCID(&proc, job, strcmp(rank, "all") == 0 ? PMIX_RANK_WILDCARD : (pmix_rank_t) atoi(rank));
    for (int n = 0; n < count; n++) {
        pmix_byte_object_t object = {texts[n], strlen(texts[n])};
        push_one(&proc, &object, NULL, 0);
    }
    pmix_info_t info;
    bool yes = true;
    PMIX_INFO_LOAD(&info, PMIX_IOF_COMPLETE, &yes, PMIX_BOOL);
    pmix_byte_object_t none = {NULL, 0};
    push_one(&proc, &none, &info, 1);
    printf("pushed\n");
}

static void push_stdin(const char *job, const char *rank) {
    pmix_proc_t proc;
    PMIX_LOAD_PROCID(&proc, job, (pmix_rank_t) atoi(rank));
    pmix_info_t info;
    bool yes = true;
    PMIX_INFO_LOAD(&info, PMIX_IOF_PUSH_STDIN, &yes, PMIX_BOOL);
    pmix_status_t status = PMIx_IOF_push(&proc, 1, NULL, &info, 1, on_completed, NULL);
    check(status, "push");
    printf("pushing\n");
    fflush(stdout);
}

static void print_processors(const pmix_proc_t *self) {
    pmix_proc_t job = *self;
    pmix_value_t *cpuset, *locality, *topology;
    job.rank = PMIX_RANK_WILDCARD;
    check(PMIx_Get(self, PMIX_CPUSET, NULL, 0, &cpuset), "cpuset");
    check(PMIx_Get(self, PMIX_LOCALITY_STRING, NULL, 0, &locality), "locality");
    check(PMIx_Get(&job, "pmix.hwlocxml2", NULL, 0, &topology), "topology");
    printf("%s %s %d\n", cpuset->data.string, locality->data.string,
           strstr(topology->data.string, "<topology") != NULL);
    fflush(stdout);
    PMIX_VALUE_RELEASE(cpuset);
    PMIX_VALUE_RELEASE(locality);
    PMIX_VALUE_RELEASE(topology);
}

/* Spawns a job. Returns its name. */
static char *spawn(int ranks, uint32_t size, const char *key, const char *script) {
    static char nspace[PMIX_MAX_NSLEN + 1];
    pmix_info_t infos[2];
    pmix_app_t *app;
    bool flag = key[0] != '-';
    PMIX_INFO_LOAD(&infos[0], flag ? key : key + 1, &flag, PMIX_BOOL);
    PMIX_INFO_LOAD(&infos[1], PMIX_IOF_CACHE_SIZE, &size, PMIX_UINT32);
    PMIX_APP_CREATE(app, 1);
    app->cmd = strdup("sh");
    app->argv = calloc(4, sizeof *app->argv);
    app->argv[0] = strdup("sh");
    app->argv[1] = strdup("-c");
    app->argv[2] = strdup(script);
    app->maxprocs = ranks;
    check(PMIx_Spawn(infos, size > 0 ? 2 : 1, app, 1, nspace), "spawn");
    printf("spawned %s\n", nspace);
    fflush(stdout);
    return nspace;
}

/* Pulls the output of a job of this many ranks, until all of it is complete. */
static void pull_late(const char *job, int ranks) {
    char line[16];
    if (fgets(line, sizeof line, stdin) == NULL) {
        wait_until(&ended);
        return;
    }
    size_t id = pull(job, "all", PMIX_FWD_STDOUT_CHANNEL, on_output);
    pthread_mutex_lock(&lock);
    while (streams < (unsigned) ranks) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
    deregister(id);
}

static void report(void) {
    wait_until(&ended);
    printf("bytes %llu lost %llu streams %llu\n", bytes, lost, streams);
    printf(ended == 1 ? "ended %d\n" : "lost connection\n", exit_code);
}

int main(int argc, char **argv) {
    pmix_proc_t self;
    pmix_info_t info;
    /* Ends a wait of the library that would never end. */
    alarm(60);
    if (strcmp(argv[1], "rank") == 0 || strcmp(argv[1], "processors") == 0) {
        check(PMIx_Init(&self, NULL, 0), "init");
        if (strcmp(argv[1], "rank") == 0) {
            printf("rank\n");
            fflush(stdout);
        } else {
            print_processors(&self);
        }
        check(PMIx_Finalize(NULL, 0), "finalize");
        return 0;
    }
    char *where = strchr(argv[1], ':') + 1, *action = argv[2];
    pid_t pid = atoi(where);
    if (strncmp(argv[1], "pid:", 4) == 0) {
        PMIX_INFO_LOAD(&info, PMIX_SERVER_PIDINFO, &pid, PMIX_PID);
    } else if (strcmp(argv[1], "system:") == 0) {
        bool yes = true;
        PMIX_INFO_LOAD(&info, PMIX_CONNECT_TO_SYSTEM, &yes, PMIX_BOOL);
    } else {
        PMIX_INFO_LOAD(&info, PMIX_SERVER_NSPACE, where, PMIX_STRING);
    }
    check(PMIx_tool_init(&self, &info, 1), "init");
    printf("attached\n");
    fflush(stdout);
    char *job = argc > 3 ? argv[3] : NULL;
    if (strcmp(action, "namespaces") == 0) {
        query(PMIX_QUERY_NAMESPACES, NULL);
    } else if (strcmp(action, "query") == 0) {
        query(job, NULL);
    } else if (strcmp(action, "table") == 0) {
        query(PMIX_QUERY_PROC_TABLE, job);
    } else if (strcmp(action, "status") == 0) {
        query(PMIX_QUERY_JOB_STATUS, job);
    } else if (strcmp(action, "pull") == 0) {
        prints = strcmp(argv[6], "print") == 0;
        stalls = strcmp(argv[6], "stall") == 0;
        register_events();
        pull(job, argv[4], atoi(argv[5]), on_output);
        report();
    } else if (strcmp(action, "pulls") == 0) {
        pmix_proc_t proc;
        register_events();
        PMIX_LOAD_PROCID(&proc, job, (pmix_rank_t) atoi(argv[4]));
        printf("refused %d\n", PMIx_IOF_pull(&proc, 1, NULL, 0, PMIX_FWD_STDOUT_CHANNEL, on_output, NULL, NULL));
        pull(job, argv[5], PMIX_FWD_STDOUT_CHANNEL, on_output);
        report();
    } else if (strcmp(action, "print") == 0) {
        register_events();
        pull(job, "all", PMIX_FWD_STDOUT_CHANNEL, NULL);
        wait_until(&ended);
    } else if (strcmp(action, "stop") == 0) {
        register_events();
        size_t id = pull(job, "all", PMIX_FWD_STDOUT_CHANNEL, on_output);
        wait_until(&deliveries);
        deregister(id);
        printf("deregistered\n");
        fflush(stdout);
        pull(job, "all", PMIX_FWD_STDOUT_CHANNEL, on_output);
        report();
    } else if (strcmp(action, "held") == 0) {
        size_t ids[] = {pull_buffered(job, PMIX_FWD_STDOUT_CHANNEL), pull_buffered(job, PMIX_FWD_STDERR_CHANNEL)};
        /* An answer shows that the pulls are served. */
        query(PMIX_QUERY_NAMESPACES, NULL);
        printf("held\n");
        fflush(stdout);
        for (int n = 0; n < 2; n++) {
            char line[16];
            if (fgets(line, sizeof line, stdin) == NULL) {
                _exit(4);
            }
            deregister(ids[n]);
        }
        printf("ended\n");
        fflush(stdout);
    } else if (strcmp(action, "push") == 0) {
        push(job, argv[4], argc - 5, argv + 5);
    } else if (strcmp(action, "stdin") == 0) {
        register_events();
        push_stdin(job, argv[4]);
        wait_until(&ended);
    } else if (strcmp(action, "log") == 0) {
        PMIX_INFO_LOAD(&info, argv[3], argv[4], PMIX_STRING);
        check(PMIx_Log(&info, 1, NULL, 0), "log");
        printf("logged\n");
    } else if (strcmp(action, "spawn") == 0) {
        register_events();
        job = spawn(atoi(argv[3]), (uint32_t) atoi(argv[4]), argv[5], argv[6]);
        pull_late(job, atoi(argv[3]));
        report();
    } else if (strcmp(action, "end") == 0) {
        register_events();
        printf("waiting\n");
        fflush(stdout);
        report();
    }
    fflush(stdout);
    PMIx_tool_finalize();
    return 0;
}
