/*
 * For a tool that is compiled against the system's pmix.h and linked with libiof-pmix.so instead of libpmix.so, or has
 * it preloaded: it attaches to an engine of iof, by PMIx's own names.
 *
 *     cc tool.c $(pkg-config --cflags pmix iof) -liof-pmix       or       LD_PRELOAD=libiof-pmix.so ./tool
 *
 * A tool need not include this header: it brings pmix_tool.h, and iof.h for what the engine tells beside PMIx (keys such
 * as IOF_LOST) and for functions that PMIx has not (iof_progress_fd, iof_last_error). The library has both; what iof.h
 * says of a function holds for that of PMIx's name: which threads may call it, what may be NULL.
 *
 * There are, as PMIx has them: PMIx_tool_init, PMIx_tool_finalize, PMIx_Initialized, PMIx_Get_version, PMIx_Progress;
 * PMIx_IOF_pull, PMIx_IOF_deregister, PMIx_IOF_push; PMIx_Query_info, PMIx_Query_info_nb; PMIx_Log, PMIx_Log_nb;
 * PMIx_Register_event_handler, PMIx_Deregister_event_handler (for PMIX_EVENT_JOB_END and PMIX_ERR_LOST_CONNECTION);
 * PMIx_Value_*, PMIx_Info_load, PMIx_Info_xfer, PMIx_Info_list_*, PMIx_Data_array_destruct, for PMIx's macros;
 * PMIx_Error_string, PMIx_IOF_channel_string, PMIx_Proc_state_string, PMIx_Data_type_string.
 *
 * All others that pmix.h and pmix_tool.h declare give PMIX_ERR_NOT_SUPPORTED, or if they give no status NULL, false or
 * a text that says so.
 */
#ifndef IOF_PMIX_H
#define IOF_PMIX_H

#include <pmix_tool.h>

#include "iof.h"

#endif
