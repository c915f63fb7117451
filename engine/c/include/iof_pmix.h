/*
 * For a tool that is compiled against the system's pmix.h and linked with libiof-pmix.so in place
 * of libpmix.so, or that has it preloaded. The tool attaches to an engine of iof through PMIx's own
 * names.
 *
 *     cc tool.c $(pkg-config --cflags pmix iof) -liof-pmix
 *     LD_PRELOAD=libiof-pmix.so ./tool
 *
 * A tool need not include this header. It includes pmix_tool.h, and iof.h for keys and functions
 * that PMIx lacks, such as IOF_LOST, iof_progress_fd and iof_last_error. The library contains both
 * sets of functions. The comment of a function in iof.h also holds for the function of PMIx's name:
 * the threads that may call it, and the arguments that may be NULL.
 *
 * These functions work as in PMIx: PMIx_tool_init, PMIx_tool_finalize, PMIx_Initialized,
 * PMIx_Get_version, PMIx_Progress; PMIx_IOF_pull, PMIx_IOF_deregister, PMIx_IOF_push;
 * PMIx_Query_info, PMIx_Query_info_nb; PMIx_Log, PMIx_Log_nb; PMIx_Spawn, PMIx_Spawn_nb; PMIx_Register_event_handler,
 * PMIx_Deregister_event_handler (for PMIX_EVENT_JOB_END and PMIX_ERR_LOST_CONNECTION);
 * PMIx_Value_*, PMIx_Info_load, PMIx_Info_xfer, PMIx_Info_list_*, PMIx_Data_array_destruct, for
 * PMIx's macros; PMIx_Error_string, PMIx_IOF_channel_string, PMIx_Proc_state_string,
 * PMIx_Data_type_string, PMIx_Scope_string, PMIx_Persistence_string, PMIx_Data_range_string,
 * PMIx_Info_directives_string, PMIx_Info_string, PMIx_Value_string, PMIx_Get_attribute_string,
 * PMIx_Get_attribute_name; PMIx_tool_get_servers, PMIx_tool_set_server, PMIx_tool_attach_to_server,
 * PMIx_tool_connect_to_server, PMIx_tool_disconnect, for one connection of a process.
 *
 * A process that no PMIx server has started can use PMIx_Init, PMIx_Finalize, PMIx_Put,
 * PMIx_Commit, PMIx_Fence, PMIx_Get and PMIx_Get_nb, whose callback is called before the function
 * returns. As with PMIx's library, PMIx_Init returns PMIX_ERR_UNREACH, and the process is a job of
 * its own with one rank; PMIx_Fence_nb returns PMIX_ERR_UNREACH, too, and does not call its
 * callback. NULL as a key, which stands for all values in PMIx, is refused. A rank that a PMIx
 * server has started (IOF_MPI) needs PMIx's own library, which speaks the server's protocol:
 * PMIx_Init then returns PMIX_ERR_NOT_SUPPORTED.
 *
 * All other functions of pmix.h and pmix_tool.h return PMIX_ERR_NOT_SUPPORTED, and iof_last_error
 * returns the reason. Like PMIx's library, those that need a server return PMIX_ERR_INIT before the
 * library is initialized, and PMIX_ERR_UNREACH in a tool that is not connected.
 *
 *   PMIx_Publish and the like, PMIx_Connect, PMIx_Group_*, PMIx_Resolve_*
 *                                  ranks use them by PMIx's own library
 *   PMIx_Abort, PMIx_Job_control, PMIx_Allocation_request, PMIx_Process_monitor
 *                                  this library signals no processes; iof kill does
 *   PMIx_Notify_event              the engine reports the ends of jobs to tools, and passes on no
 *                                  events of tools
 *   PMIx_Get_credential, PMIx_Validate_credential
 *                                  the engine identifies tools by what the kernel reports
 *   PMIx_Data_*, PMIx_Fabric_*, PMIx_Load_topology, PMIx_Compute_distances and the like
 *                                  the library has no packed data, fabrics and topologies
 *
 * Those that do not return a status return NULL, false or a text that states this. The library does
 * not have the functions of pmix_server.h: a launcher uses those of iof.h.
 */
#ifndef IOF_PMIX_H
#define IOF_PMIX_H

#include <pmix_tool.h>

#include "iof.h"

#endif
