/* Calls a function of PMIx with NULL, zero or wrong arguments, in a tool without a connection, and
 * prints what it returns. The first argument is the number of the call. With a second one, the
 * process is not a tool. Compiled against the
 * system's pmix.h, and run with the system's libpmix and with this library. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <pmix.h>
#include <pmix_tool.h>

static pmix_proc_t self, all = {.nspace = "job", .rank = PMIX_RANK_WILDCARD};
static pmix_info_t info;
static pmix_value_t value;

static void op(pmix_status_t status, void *cbdata)
{
    (void)status, (void)cbdata;
}

static void registered(pmix_status_t status, size_t id, void *cbdata)
{
    (void)cbdata;
    (void)status, (void)id;
}

static void output(size_t id, pmix_iof_channel_t channel, pmix_proc_t *source, pmix_byte_object_t *payload,
                   pmix_info_t *infos, size_t ninfos)
{
    (void)id, (void)channel, (void)source, (void)payload, (void)infos, (void)ninfos;
}

static void event(size_t id, pmix_status_t status, const pmix_proc_t *source, pmix_info_t *infos, size_t ninfos,
                  pmix_info_t *results, size_t nresults, pmix_event_notification_cbfunc_fn_t cbfunc, void *cbdata)
{
    (void)id, (void)status, (void)source, (void)infos, (void)ninfos, (void)results, (void)nresults, (void)cbfunc,
        (void)cbdata;
}

static void answered(pmix_status_t status, pmix_info_t *infos, size_t ninfos, void *cbdata,
                     pmix_release_cbfunc_t release_fn, void *release_cbdata)
{
    (void)status, (void)infos, (void)ninfos, (void)cbdata, (void)release_fn, (void)release_cbdata;
}

/* Prints a status or a number. */
#define STATUS(number, call)                                                                               \
    case number:                                                                                           \
        printf("%s = %ld", #call, (long)(call));                                                           \
        break;
/* Prints a text. */
#define TEXT(number, call)                                                                                 \
    case number: {                                                                                         \
        const char *text = (call);                                                                         \
        printf("%s = %s", #call, text ? text : "(NULL)");                                                  \
        break;                                                                                             \
    }

int main(int argc, char **argv)
{
    pmix_info_t *results = NULL, source;
    pmix_query_t query, no_keys;
    pmix_byte_object_t bo = {"bytes", 5}, empty = {NULL, 0};
    pmix_data_array_t array = {.type = PMIX_INFO};
    size_t nresults = 0;
    void *list = NULL;
    bool yes = true;
    if (argc < 2) {
        return 2;
    }
    int number = atoi(argv[1]);
    alarm(60);
    PMIX_INFO_LOAD(&info, PMIX_TOOL_DO_NOT_CONNECT, &yes, PMIX_BOOL);
    if (argc == 2 && PMIx_tool_init(&self, &info, 1) != PMIX_SUCCESS) {
        return 1;
    }
    PMIX_QUERY_CONSTRUCT(&query);
    PMIX_QUERY_CONSTRUCT(&no_keys);
    pmix_status_t status;
    PMIX_ARGV_APPEND(status, query.keys, PMIX_QUERY_NAMESPACES);
    (void)status, (void)list;
    PMIX_INFO_LOAD(&info, PMIX_LOG_STDERR, "text", PMIX_STRING);
    PMIX_INFO_LOAD(&source, PMIX_LOG_SOURCE, "text", PMIX_STRING);
    PMIX_VALUE_CONSTRUCT(&value);
    switch (number) {
        STATUS(0, PMIx_IOF_pull(NULL, 0, NULL, 0, PMIX_FWD_STDOUT_CHANNEL, output, registered, NULL))
        STATUS(1, PMIx_IOF_pull(NULL, 0, NULL, 0, PMIX_FWD_STDOUT_CHANNEL, output, NULL, NULL))
        STATUS(2, PMIx_IOF_pull(&all, 1, NULL, 0, PMIX_FWD_STDIN_CHANNEL, output, registered, NULL))
        STATUS(3, PMIx_IOF_pull(&all, 1, NULL, 0, PMIX_FWD_ALL_CHANNELS, output, registered, NULL))
        STATUS(4, PMIx_IOF_pull(&all, 1, NULL, 0, PMIX_FWD_NO_CHANNELS, output, registered, NULL))
        STATUS(5, PMIx_IOF_pull(&all, 1, NULL, 0, PMIX_FWD_STDOUT_CHANNEL, output, registered, NULL))
        STATUS(6, PMIx_IOF_deregister(99, NULL, 0, op, NULL))
        STATUS(7, PMIx_IOF_deregister(99, NULL, 0, NULL, NULL))
        STATUS(8, PMIx_IOF_push(NULL, 0, NULL, NULL, 0, op, NULL))
        STATUS(9, PMIx_IOF_push(&all, 1, NULL, NULL, 0, op, NULL))
        STATUS(10, PMIx_IOF_push(&all, 1, &empty, NULL, 0, op, NULL))
        STATUS(11, PMIx_IOF_push(NULL, 0, &bo, NULL, 0, op, NULL))
        STATUS(12, PMIx_IOF_push(&all, 1, &bo, NULL, 0, op, NULL))
        STATUS(13, PMIx_Query_info(NULL, 0, &results, &nresults))
        STATUS(14, PMIx_Query_info(&no_keys, 1, &results, &nresults))
        STATUS(15, PMIx_Query_info(&query, 1, &results, &nresults))
        STATUS(16, PMIx_Query_info_nb(NULL, 0, answered, NULL))
        STATUS(17, PMIx_Query_info_nb(&query, 1, NULL, NULL))
        STATUS(18, PMIx_Query_info_nb(&no_keys, 1, answered, NULL))
        STATUS(19, PMIx_Log(NULL, 0, NULL, 0))
        STATUS(20, PMIx_Log_nb(NULL, 0, NULL, 0, op, NULL))
        STATUS(21, PMIx_Log(&info, 1, &source, 1))
        STATUS(22, PMIx_Log_nb(&info, 1, &source, 1, op, NULL))
        STATUS(23, PMIx_Register_event_handler(NULL, 0, NULL, 0, event, registered, NULL))
        STATUS(24, PMIx_Register_event_handler(NULL, 0, NULL, 0, event, NULL, NULL) >= 0)
        STATUS(25, PMIx_Register_event_handler(NULL, 0, NULL, 0, NULL, NULL, NULL) >= 0)
        STATUS(26, PMIx_Deregister_event_handler(99, op, NULL))
        STATUS(27, PMIx_Deregister_event_handler(99, NULL, NULL))
        STATUS(28, PMIx_Info_list_convert(PMIx_Info_list_start(), &array))
        STATUS(29, PMIx_Info_list_convert(NULL, &array))
        STATUS(30, PMIx_Info_list_convert((list = PMIx_Info_list_start()), NULL))
        STATUS(31, PMIx_Info_list_add(NULL, PMIX_LOG_STDERR, "text", PMIX_STRING))
        STATUS(32, PMIx_Info_load(NULL, PMIX_LOG_STDERR, "text", PMIX_STRING))
        STATUS(33, PMIx_Info_load(&info, NULL, "text", PMIX_STRING))
        STATUS(34, PMIx_Info_load(&info, PMIX_LOG_STDERR, NULL, PMIX_STRING))
        STATUS(35, PMIx_Info_load(&info, PMIX_LOG_STDERR, NULL, PMIX_BOOL))
        STATUS(36, PMIx_Info_xfer(NULL, &info))
        STATUS(37, PMIx_Info_xfer(&info, NULL))
        STATUS(38, PMIx_Value_load(&value, NULL, PMIX_STRING))
        STATUS(39, PMIx_Value_load(&value, NULL, PMIX_BOOL))
        STATUS(40, PMIx_Value_xfer(NULL, &value))
        STATUS(41, PMIx_Value_xfer(&value, &info.value))
        STATUS(42, PMIx_Value_unload(&value, (void **)&results, &nresults))
        STATUS(43, PMIx_Initialized())
        STATUS(44, PMIx_Abort(0, "text", NULL, 0))
        STATUS(45, PMIx_Get(NULL, NULL, NULL, 0, NULL))
        STATUS(46, PMIx_Put(PMIX_GLOBAL, NULL, NULL))
        STATUS(47, PMIx_Commit())
        STATUS(48, PMIx_Fence(NULL, 0, NULL, 0))
        STATUS(49, PMIx_Publish(NULL, 0))
        STATUS(50, PMIx_Lookup(NULL, 0, NULL, 0))
        STATUS(51, PMIx_Spawn(NULL, 0, NULL, 0, NULL))
        STATUS(52, PMIx_Notify_event(PMIX_EVENT_JOB_END, NULL, PMIX_RANGE_LOCAL, NULL, 0, op, NULL))
        STATUS(53, PMIx_tool_set_server(NULL, NULL, 0))
        STATUS(54, PMIx_tool_set_server(&all, NULL, 0))
        STATUS(55, PMIx_tool_get_servers(&(pmix_proc_t *){NULL}, &nresults))
        STATUS(56, PMIx_tool_disconnect(&all))
        STATUS(57, PMIx_tool_attach_to_server(NULL, NULL, NULL, 0))
        TEXT(58, PMIx_Error_string(PMIX_ERR_UNREACH))
        TEXT(59, PMIx_Error_string(12345))
        TEXT(60, PMIx_Proc_state_string(PMIX_PROC_STATE_RUNNING))
        TEXT(61, PMIx_Proc_state_string(200))
        TEXT(62, PMIx_Scope_string(PMIX_LOCAL))
        TEXT(63, PMIx_Scope_string(PMIX_INTERNAL))
        TEXT(64, PMIx_Scope_string(PMIX_SCOPE_UNDEF))
        TEXT(65, PMIx_Scope_string(77))
        TEXT(66, PMIx_Persistence_string(PMIX_PERSIST_APP))
        TEXT(67, PMIx_Persistence_string(77))
        TEXT(68, PMIx_Data_range_string(PMIX_RANGE_NAMESPACE))
        TEXT(69, PMIx_Data_range_string(77))
        TEXT(70, PMIx_Info_directives_string(PMIX_INFO_REQD))
        TEXT(71, PMIx_Info_directives_string(PMIX_INFO_REQD | PMIX_INFO_ARRAY_END))
        TEXT(72, PMIx_Info_directives_string(0))
        TEXT(73, PMIx_Data_type_string(PMIX_STRING))
        TEXT(74, PMIx_Data_type_string(12345))
        TEXT(75, PMIx_IOF_channel_string(PMIX_FWD_STDOUT_CHANNEL | PMIX_FWD_STDERR_CHANNEL))
        TEXT(76, PMIx_IOF_channel_string(0))
        TEXT(77, PMIx_IOF_channel_string(0xff))
        TEXT(78, PMIx_Alloc_directive_string(PMIX_ALLOC_NEW))
        TEXT(79, PMIx_Info_string(&info))
        TEXT(80, PMIx_Value_string(&info.value))
        TEXT(81, PMIx_Get_attribute_string("PMIX_LOG_STDERR"))
        TEXT(82, PMIx_Get_attribute_string("no such"))
        TEXT(83, PMIx_Get_attribute_name("pmix.log.stderr"))
        TEXT(84, PMIx_Get_attribute_name("no such"))
        TEXT(85, PMIx_Job_state_string(PMIX_JOB_STATE_RUNNING))
        TEXT(86, PMIx_Link_state_string(PMIX_LINK_UP))
        TEXT(87, PMIx_Device_type_string(PMIX_DEVTYPE_GPU))
        STATUS(88, PMIx_tool_finalize())
        STATUS(89, PMIx_tool_init(NULL, NULL, 0))
        STATUS(90, PMIx_Connect(NULL, 0, NULL, 0))
        STATUS(91, PMIx_Connect_nb(NULL, 0, NULL, 0, op, NULL))
        STATUS(92, PMIx_Disconnect(NULL, 0, NULL, 0))
        STATUS(93, PMIx_Get_nb(NULL, NULL, NULL, 0, NULL, NULL))
        STATUS(94, PMIx_Fence_nb(NULL, 0, NULL, 0, op, NULL))
        STATUS(95, PMIx_Unpublish(NULL, NULL, 0))
        STATUS(96, PMIx_Publish_nb(NULL, 0, op, NULL))
        STATUS(97, PMIx_Lookup_nb(NULL, NULL, 0, NULL, NULL))
        STATUS(98, PMIx_Spawn_nb(NULL, 0, NULL, 0, NULL, NULL))
        STATUS(99, PMIx_Resolve_peers(NULL, NULL, NULL, NULL))
        STATUS(100, PMIx_Resolve_nodes(NULL, NULL))
        STATUS(101, PMIx_Job_control(NULL, 0, NULL, 0, NULL, NULL))
        STATUS(102, PMIx_Job_control_nb(NULL, 0, NULL, 0, NULL, NULL))
        STATUS(103, PMIx_Allocation_request(0, NULL, 0, NULL, NULL))
        STATUS(104, PMIx_Process_monitor(NULL, 0, NULL, 0, NULL, NULL))
        STATUS(105, PMIx_Get_credential(NULL, 0, NULL))
        STATUS(106, PMIx_Validate_credential(NULL, NULL, 0, NULL, NULL))
        STATUS(107, PMIx_Group_construct(NULL, NULL, 0, NULL, 0, NULL, NULL))
        STATUS(108, PMIx_Group_destruct(NULL, NULL, 0))
        STATUS(109, PMIx_Store_internal(NULL, NULL, NULL))
        STATUS(110, PMIx_Info_list_xfer(NULL, NULL))
        STATUS(111, PMIx_Finalize(NULL, 0))
        STATUS(112, PMIx_Init(NULL, NULL, 0))
        STATUS(113, PMIx_tool_connect_to_server(NULL, NULL, 0))
        STATUS(114, PMIx_Data_copy(NULL, NULL, 0))
        STATUS(115, PMIx_Data_pack(NULL, NULL, NULL, 0, 0))
        STATUS(116, PMIx_Get_relative_locality(NULL, NULL, NULL))
        STATUS(117, PMIx_Load_topology(NULL))
        STATUS(118, PMIx_Parse_cpuset_string(NULL, NULL))
        STATUS(119, PMIx_Fabric_register(NULL, NULL, 0))
    }
    printf("\n");
    fflush(stdout);
    _exit(0);
}
