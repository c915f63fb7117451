
// The macros below have the names and arguments of PMIx's, with another prefix. A macro may
// evaluate an argument more than once. STATIC_INIT initializes a structure that is declared as
// empty. CONSTRUCT makes a structure empty, without freeing what it held. DESTRUCT frees what a
// structure holds, and makes it empty. CREATE allocates an array of n empty structures by
// calloc(3): the pointer is NULL if memory is exhausted or n is 0. FREE and RELEASE free such an
// array, of n structures or of one, with all that it holds, and set the pointer to NULL.

// Frees what n structures hold, and the array itself, and sets the pointer to NULL.
#define IOF_FREE_ARRAY(m, n, destruct)                                                                        \
    do {                                                                                                      \
        if ((m) != NULL) {                                                                                    \
            for (size_t iof_i_ = 0; iof_i_ < (size_t)(n); iof_i_++) {                                         \
                destruct(&(m)[iof_i_]);                                                                       \
            }                                                                                                 \
            free(m);                                                                                          \
            (m) = NULL;                                                                                       \
        }                                                                                                     \
    } while (0)

// Frees an allocated text, and sets the pointer to NULL.
#define IOF_FREE_TEXT(text)                                                                                   \
    do {                                                                                                      \
        free(text);                                                                                           \
        (text) = NULL;                                                                                        \
    } while (0)

// Copies a text, cut to size - 1 bytes, into an array of size bytes. The rest of the array becomes
// 0.
#define IOF_COPY_TEXT(array, text, size)                                                                      \
    do {                                                                                                      \
        const char *iof_text_ = (text);                                                                       \
        memset((array), 0, (size));                                                                           \
        if (iof_text_ != NULL) {                                                                              \
            strncpy((array), iof_text_, (size)-1);                                                            \
        }                                                                                                     \
    } while (0)

// Compares keys.
#define IOF_CHECK_KEY(a, b) (strncmp((a)->key, (b), IOF_MAX_KEYLEN) == 0)
// Copies a key into an iof_key_t.
#define IOF_LOAD_KEY(a, b) IOF_COPY_TEXT((a), (b), sizeof(iof_key_t))
// Returns whether a key is reserved for PMIx: it begins with "pmix".
#define IOF_CHECK_RESERVED_KEY(a) (strncmp((a), "pmix", 4) == 0)

// Compares names of jobs.
#define IOF_CHECK_NSPACE(a, b) (strncmp((a), (b), IOF_MAX_NSLEN) == 0)
// Returns whether a name of a job is NULL or empty.
#define IOF_NSPACE_INVALID(a) ((a) == NULL || (a)[0] == '\0')
// Copies a name of a job into an iof_nspace_t.
#define IOF_LOAD_NSPACE(a, b) IOF_COPY_TEXT((a), (b), sizeof(iof_nspace_t))
// Returns whether a is b, or one of them is IOF_RANK_WILDCARD.
#define IOF_CHECK_RANK(a, b) ((a) == (b) || (a) == IOF_RANK_WILDCARD || (b) == IOF_RANK_WILDCARD)
// Returns whether a is the number of one rank.
#define IOF_RANK_IS_VALID(a) ((a) < IOF_RANK_WILDCARD)
// Returns whether two processes have the same job, and the same rank or IOF_RANK_WILDCARD.
#define IOF_CHECK_PROCID(a, b) (IOF_CHECK_NSPACE((a)->nspace, (b)->nspace) && IOF_CHECK_RANK((a)->rank, (b)->rank))
// Returns whether a process has no job, or no rank.
#define IOF_PROCID_INVALID(a) (IOF_NSPACE_INVALID((a)->nspace) || (a)->rank == IOF_RANK_UNDEF)
// Fills a process with a name of a job and a rank.
#define IOF_LOAD_PROCID(a, b, c)                                                                              \
    do {                                                                                                      \
        IOF_LOAD_NSPACE((a)->nspace, (b));                                                                    \
        (a)->rank = (c);                                                                                      \
    } while (0)
// Copies a process.
#define IOF_XFER_PROCID(a, b) (*(a) = *(b))
#define IOF_PROCID_XFER(a, b) IOF_XFER_PROCID(a, b)

#define IOF_PROC_STATIC_INIT {{0}, IOF_RANK_UNDEF}
#define IOF_PROC_CONSTRUCT(m) (memset((m), 0, sizeof(iof_proc_t)), (void)((m)->rank = IOF_RANK_UNDEF))
#define IOF_PROC_DESTRUCT(m) IOF_PROC_CONSTRUCT(m)
#define IOF_PROC_CREATE(m, n) ((m) = (iof_proc_t *)calloc((n), sizeof(iof_proc_t)))
#define IOF_PROC_FREE(m, n) IOF_FREE_ARRAY(m, n, IOF_PROC_DESTRUCT)
#define IOF_PROC_RELEASE(m) IOF_PROC_FREE(m, 1)
#define IOF_PROC_LOAD(m, n, r) IOF_LOAD_PROCID(m, n, r)

#define IOF_PROC_INFO_STATIC_INIT {IOF_PROC_STATIC_INIT, NULL, NULL, 0, 0, IOF_PROC_STATE_UNDEF}
#define IOF_PROC_INFO_CONSTRUCT(m) memset((m), 0, sizeof(iof_proc_info_t))
#define IOF_PROC_INFO_DESTRUCT(m)                                                                             \
    do {                                                                                                      \
        IOF_FREE_TEXT((m)->hostname);                                                                         \
        IOF_FREE_TEXT((m)->executable_name);                                                                  \
        IOF_PROC_INFO_CONSTRUCT(m);                                                                           \
    } while (0)
#define IOF_PROC_INFO_CREATE(m, n) ((m) = (iof_proc_info_t *)calloc((n), sizeof(iof_proc_info_t)))
#define IOF_PROC_INFO_FREE(m, n) IOF_FREE_ARRAY(m, n, IOF_PROC_INFO_DESTRUCT)
#define IOF_PROC_INFO_RELEASE(m) IOF_PROC_INFO_FREE(m, 1)

#define IOF_BYTE_OBJECT_STATIC_INIT {NULL, 0}
#define IOF_BYTE_OBJECT_CONSTRUCT(m) memset((m), 0, sizeof(iof_byte_object_t))
#define IOF_BYTE_OBJECT_DESTRUCT(m)                                                                           \
    do {                                                                                                      \
        IOF_FREE_TEXT((m)->bytes);                                                                            \
        (m)->size = 0;                                                                                        \
    } while (0)
#define IOF_BYTE_OBJECT_CREATE(m, n) ((m) = (iof_byte_object_t *)calloc((n), sizeof(iof_byte_object_t)))
#define IOF_BYTE_OBJECT_FREE(m, n) IOF_FREE_ARRAY(m, n, IOF_BYTE_OBJECT_DESTRUCT)
#define IOF_BYTE_OBJECT_RELEASE(m) IOF_BYTE_OBJECT_FREE(m, 1)
// Lends bytes to a byte object, which DESTRUCT frees.
#define IOF_BYTE_OBJECT_LOAD(b, d, s)                                                                         \
    do {                                                                                                      \
        (b)->bytes = (char *)(d);                                                                             \
        (b)->size = (s);                                                                                      \
    } while (0)

#define IOF_ENVAR_STATIC_INIT {NULL, NULL, '\0'}
#define IOF_ENVAR_CONSTRUCT(m) memset((m), 0, sizeof(iof_envar_t))
#define IOF_ENVAR_DESTRUCT(m)                                                                                 \
    do {                                                                                                      \
        IOF_FREE_TEXT((m)->envar);                                                                            \
        IOF_FREE_TEXT((m)->value);                                                                            \
    } while (0)
#define IOF_ENVAR_CREATE(m, n) ((m) = (iof_envar_t *)calloc((n), sizeof(iof_envar_t)))
#define IOF_ENVAR_FREE(m, n) IOF_FREE_ARRAY(m, n, IOF_ENVAR_DESTRUCT)
// Fills a change of an environment variable with copies of its name and value.
#define IOF_ENVAR_LOAD(m, e, v, s)                                                                            \
    do {                                                                                                      \
        (m)->envar = (e) != NULL ? strdup(e) : NULL;                                                          \
        (m)->value = (v) != NULL ? strdup(v) : NULL;                                                          \
        (m)->separator = (s);                                                                                 \
    } while (0)

#define IOF_VALUE_STATIC_INIT {IOF_UNDEF, {0}}
#define IOF_VALUE_CONSTRUCT(m) memset((m), 0, sizeof(iof_value_t))
#define IOF_VALUE_DESTRUCT(m) iof_Value_destruct(m)
#define IOF_VALUE_CREATE(m, n) ((m) = (iof_value_t *)calloc((n), sizeof(iof_value_t)))
#define IOF_VALUE_FREE(m, n) IOF_FREE_ARRAY(m, n, IOF_VALUE_DESTRUCT)
#define IOF_VALUE_RELEASE(m) IOF_VALUE_FREE(m, 1)
#define IOF_VALUE_LOAD(v, d, t) iof_Value_load((v), (d), (t))
// Stores the status in r. k is the address of the pointer that receives the data.
#define IOF_VALUE_UNLOAD(r, k, d, s) ((r) = iof_Value_unload((k), (void **)(d), (s)))
// Stores the status in r. v is a pointer. If it is NULL, it receives a new value.
#define IOF_VALUE_XFER(r, v, s)                                                                               \
    do {                                                                                                      \
        if ((v) == NULL) {                                                                                    \
            IOF_VALUE_CREATE((v), 1);                                                                         \
        }                                                                                                     \
        (r) = (v) != NULL ? iof_Value_xfer((v), (s)) : IOF_ERR_NOMEM;                                         \
    } while (0)
#define IOF_VALUE_XFER_DIRECT(r, v, s) ((r) = iof_Value_xfer((v), (s)))
// Stores the number that a value contains in n, as type t, and the status in s: IOF_ERR_BAD_PARAM if
// the value is not a number.
#define IOF_VALUE_GET_NUMBER(s, m, n, t)                                                                      \
    do {                                                                                                      \
        (s) = IOF_SUCCESS;                                                                                    \
        switch ((m)->type) {                                                                                  \
        case IOF_SIZE: (n) = (t)(m)->data.size; break;                                                        \
        case IOF_INT: (n) = (t)(m)->data.integer; break;                                                      \
        case IOF_INT8: (n) = (t)(m)->data.int8; break;                                                        \
        case IOF_INT16: (n) = (t)(m)->data.int16; break;                                                      \
        case IOF_INT32: (n) = (t)(m)->data.int32; break;                                                      \
        case IOF_INT64: (n) = (t)(m)->data.int64; break;                                                      \
        case IOF_UINT: (n) = (t)(m)->data.uint; break;                                                        \
        case IOF_UINT8: (n) = (t)(m)->data.uint8; break;                                                      \
        case IOF_UINT16: (n) = (t)(m)->data.uint16; break;                                                    \
        case IOF_UINT32: (n) = (t)(m)->data.uint32; break;                                                    \
        case IOF_UINT64: (n) = (t)(m)->data.uint64; break;                                                    \
        case IOF_FLOAT: (n) = (t)(m)->data.fval; break;                                                       \
        case IOF_DOUBLE: (n) = (t)(m)->data.dval; break;                                                      \
        case IOF_PID: (n) = (t)(m)->data.pid; break;                                                          \
        case IOF_STATUS: (n) = (t)(m)->data.status; break;                                                    \
        case IOF_PROC_RANK: (n) = (t)(m)->data.rank; break;                                                   \
        default: (s) = IOF_ERR_BAD_PARAM;                                                                     \
        }                                                                                                     \
    } while (0)

#define IOF_INFO_STATIC_INIT {{0}, 0, IOF_VALUE_STATIC_INIT}
#define IOF_INFO_CONSTRUCT(m) memset((m), 0, sizeof(iof_info_t))
#define IOF_INFO_DESTRUCT(m) iof_Value_destruct(&(m)->value)
// The last info of the array is marked as such (IOF_INFO_ARRAY_END).
#define IOF_INFO_CREATE(m, n)                                                                                 \
    do {                                                                                                      \
        (m) = (iof_info_t *)calloc((n), sizeof(iof_info_t));                                                  \
        if ((m) != NULL && (size_t)(n) > 0) {                                                                 \
            (m)[(size_t)(n)-1].flags = IOF_INFO_ARRAY_END;                                                    \
        }                                                                                                     \
    } while (0)
#define IOF_INFO_FREE(m, n)                                                                                   \
    do {                                                                                                      \
        iof_Info_free((m), (n));                                                                              \
        (m) = NULL;                                                                                           \
    } while (0)
// Fills an info as iof_Info_load does, which is to be checked if data can be too large.
#define IOF_INFO_LOAD(i, k, d, t) (void)iof_Info_load((i), (k), (d), (t))
#define IOF_INFO_XFER(d, s) (void)iof_Info_xfer((d), (s))
#define IOF_INFO_REQUIRED(m) iof_Info_required(m)
#define IOF_INFO_IS_REQUIRED(m) (((m)->flags & IOF_INFO_REQD) != 0)
#define IOF_INFO_OPTIONAL(m) ((m)->flags &= ~(iof_info_directives_t)IOF_INFO_REQD)
#define IOF_INFO_IS_OPTIONAL(m) (((m)->flags & IOF_INFO_REQD) == 0)
#define IOF_INFO_SET_END(m) ((m)->flags |= IOF_INFO_ARRAY_END)
#define IOF_INFO_IS_END(m) (((m)->flags & IOF_INFO_ARRAY_END) != 0)
#define IOF_INFO_PROCESSED(m) ((m)->flags |= IOF_INFO_REQD_PROCESSED)
#define IOF_INFO_WAS_PROCESSED(m) (((m)->flags & IOF_INFO_REQD_PROCESSED) != 0)
#define IOF_INFO_SET_PERSISTENT(m) ((m)->flags |= IOF_INFO_PERSISTENT)
#define IOF_INFO_IS_PERSISTENT(m) (((m)->flags & IOF_INFO_PERSISTENT) != 0)
#define IOF_INFO_SET_QUALIFIER(m) ((m)->flags |= IOF_INFO_QUALIFIER)
#define IOF_INFO_IS_QUALIFIER(m) (((m)->flags & IOF_INFO_QUALIFIER) != 0)
// Returns whether an info is true: a bool that is true, or no value.
#define IOF_INFO_TRUE(m)                                                                                      \
    ((m)->value.type == IOF_UNDEF || ((m)->value.type == IOF_BOOL && (m)->value.data.flag))

// m is a pointer that receives the list.
#define IOF_INFO_LIST_START(m) ((m) = iof_Info_list_start())
// Stores the status in r.
#define IOF_INFO_LIST_ADD(r, p, a, v, t) ((r) = iof_Info_list_add((p), (a), (v), (t)))
#define IOF_INFO_LIST_XFER(r, p, a) ((r) = iof_Info_list_xfer((p), (a)))
#define IOF_INFO_LIST_CONVERT(r, p, m) ((r) = iof_Info_list_convert((p), (m)))
#define IOF_INFO_LIST_RELEASE(p) iof_Info_list_release(p)

#define IOF_DATA_ARRAY_STATIC_INIT {IOF_UNDEF, 0, NULL}
// Makes a structure an array of n elements of type t, which are all zero.
#define IOF_DATA_ARRAY_CONSTRUCT(m, n, t) iof_Data_array_construct((m), (n), (t))
#define IOF_DATA_ARRAY_CREATE(m, n, t)                                                                        \
    do {                                                                                                      \
        (m) = (iof_data_array_t *)calloc(1, sizeof(iof_data_array_t));                                        \
        if ((m) != NULL) {                                                                                    \
            IOF_DATA_ARRAY_CONSTRUCT((m), (n), (t));                                                          \
        }                                                                                                     \
    } while (0)
// Makes a structure an array of no elements.
#define IOF_DATA_ARRAY_INIT(m, t) IOF_DATA_ARRAY_CONSTRUCT(m, 0, t)
#define IOF_DATA_ARRAY_DESTRUCT(m) iof_Data_array_destruct(m)
#define IOF_DATA_ARRAY_FREE(m) (iof_Data_array_destruct(m), free(m), (void)((m) = NULL))

#define IOF_QUERY_STATIC_INIT {NULL, NULL, 0}
#define IOF_QUERY_CONSTRUCT(m) memset((m), 0, sizeof(iof_query_t))
#define IOF_QUERY_DESTRUCT(m)                                                                                 \
    do {                                                                                                      \
        IOF_ARGV_FREE((m)->keys);                                                                             \
        IOF_INFO_FREE((m)->qualifiers, (m)->nqual);                                                           \
        (m)->nqual = 0;                                                                                       \
    } while (0)
#define IOF_QUERY_CREATE(m, n) ((m) = (iof_query_t *)calloc((n), sizeof(iof_query_t)))
#define IOF_QUERY_FREE(m, n) IOF_FREE_ARRAY(m, n, IOF_QUERY_DESTRUCT)
#define IOF_QUERY_RELEASE(m) IOF_QUERY_FREE(m, 1)
#define IOF_QUERY_QUALIFIERS_CREATE(m, n)                                                                     \
    do {                                                                                                      \
        (m)->nqual = (n);                                                                                     \
        IOF_INFO_CREATE((m)->qualifiers, (m)->nqual);                                                         \
    } while (0)

#define IOF_APP_STATIC_INIT {NULL, NULL, NULL, NULL, 0, NULL, 0}
#define IOF_APP_CONSTRUCT(m) memset((m), 0, sizeof(iof_app_t))
#define IOF_APP_DESTRUCT(m)                                                                                   \
    do {                                                                                                      \
        IOF_FREE_TEXT((m)->cmd);                                                                              \
        IOF_ARGV_FREE((m)->argv);                                                                             \
        IOF_ARGV_FREE((m)->env);                                                                              \
        IOF_FREE_TEXT((m)->cwd);                                                                              \
        IOF_INFO_FREE((m)->info, (m)->ninfo);                                                                 \
        (m)->ninfo = 0;                                                                                       \
    } while (0)
#define IOF_APP_CREATE(m, n) ((m) = (iof_app_t *)calloc((n), sizeof(iof_app_t)))
#define IOF_APP_FREE(m, n) IOF_FREE_ARRAY(m, n, IOF_APP_DESTRUCT)
#define IOF_APP_RELEASE(m) IOF_APP_FREE(m, 1)
#define IOF_APP_INFO_CREATE(m, n)                                                                             \
    do {                                                                                                      \
        (m)->ninfo = (n);                                                                                     \
        IOF_INFO_CREATE((m)->info, (m)->ninfo);                                                               \
    } while (0)

// Appends a copy of the text b to the array of texts a, which ends with NULL and may be NULL.
// Stores the status of iof_Argv_append_nosize in r.
#define IOF_ARGV_APPEND(r, a, b) ((r) = iof_Argv_append_nosize(&(a), (b)))
// Returns the number of texts in an array that ends with NULL or is NULL, as an int.
#define IOF_ARGV_COUNT(r, a) ((r) = iof_Argv_count(a))
// The same before the texts of the array.
#define IOF_ARGV_PREPEND(r, a, b) ((r) = iof_Argv_prepend_nosize(&(a), (b)))
// The same as APPEND unless the array has the text. a is the address of the array.
#define IOF_ARGV_APPEND_UNIQUE(r, a, b) ((r) = iof_Argv_append_unique_nosize((a), (b)))
// Stores a copy of the array b in a.
#define IOF_ARGV_COPY(a, b) ((a) = iof_Argv_copy(b))
// Stores the texts of the array b, separated by the character c, in a.
#define IOF_ARGV_JOIN(a, b, c) ((a) = iof_Argv_join((b), (c)))
// Stores the parts of the text b between characters c in the array a.
#define IOF_ARGV_SPLIT(a, b, c) ((a) = iof_Argv_split((b), (c)))
// Sets the variable a to b in the environment c, the address of an array of texts. Stores the status
// in r.
#define IOF_SETENV(r, a, b, c) ((r) = iof_Setenv((a), (b), true, (c)))
// Frees an array of texts that ends with NULL, and sets the pointer to NULL.
#define IOF_ARGV_FREE(a)                                                                                      \
    do {                                                                                                      \
        iof_Argv_free(a);                                                                                     \
        (a) = NULL;                                                                                           \
    } while (0)

#define IOF_REGATTR_STATIC_INIT {NULL, {0}, IOF_UNDEF, NULL}
#define IOF_REGATTR_CONSTRUCT(m) memset((m), 0, sizeof(iof_regattr_t))
#define IOF_REGATTR_DESTRUCT(m)                                                                               \
    do {                                                                                                      \
        IOF_FREE_TEXT((m)->name);                                                                             \
        IOF_ARGV_FREE((m)->description);                                                                      \
    } while (0)
#define IOF_REGATTR_CREATE(m, n) ((m) = (iof_regattr_t *)calloc((n), sizeof(iof_regattr_t)))
#define IOF_REGATTR_FREE(m, n) IOF_FREE_ARRAY(m, n, IOF_REGATTR_DESTRUCT)
// Fills an attribute with copies of its name n and its key k, with its type t, and adds a copy of the
// text v to its description.
#define IOF_REGATTR_LOAD(m, n, k, t, v)                                                                       \
    do {                                                                                                      \
        (m)->name = strdup(n);                                                                                \
        IOF_LOAD_KEY((m)->string, (k));                                                                       \
        (m)->type = (t);                                                                                      \
        (void)iof_Argv_append_nosize(&(m)->description, (v));                                                 \
    } while (0)
// Makes a a copy of the attribute b.
#define IOF_REGATTR_XFER(a, b)                                                                                \
    do {                                                                                                      \
        (a)->name = (b)->name != NULL ? strdup((b)->name) : NULL;                                             \
        IOF_LOAD_KEY((a)->string, (b)->string);                                                               \
        (a)->type = (b)->type;                                                                                \
        IOF_ARGV_COPY((a)->description, (b)->description);                                                    \
    } while (0)
