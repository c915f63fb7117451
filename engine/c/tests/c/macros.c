/* Every macro of iof.h, as programs that are written after the PMIx standard use them. */
#include <assert.h>
#include <stdio.h>

#include <iof.h>

/* Structures that are declared as empty. */
static void test_declarations(void)
{
    iof_proc_t proc = IOF_PROC_STATIC_INIT;
    iof_proc_info_t process = IOF_PROC_INFO_STATIC_INIT;
    iof_byte_object_t bytes = IOF_BYTE_OBJECT_STATIC_INIT;
    iof_envar_t variable = IOF_ENVAR_STATIC_INIT;
    iof_value_t value = IOF_VALUE_STATIC_INIT;
    iof_info_t info = IOF_INFO_STATIC_INIT;
    iof_data_array_t array = IOF_DATA_ARRAY_STATIC_INIT;
    iof_query_t query = IOF_QUERY_STATIC_INIT;
    iof_app_t app = IOF_APP_STATIC_INIT;
    iof_regattr_t attribute = IOF_REGATTR_STATIC_INIT;
    assert(proc.nspace[0] == '\0' && proc.rank == IOF_RANK_UNDEF && process.proc.rank == IOF_RANK_UNDEF);
    assert(process.hostname == NULL && process.state == IOF_PROC_STATE_UNDEF);
    assert(bytes.bytes == NULL && bytes.size == 0 && variable.envar == NULL && variable.value == NULL);
    assert(value.type == IOF_UNDEF && info.key[0] == '\0' && info.flags == 0 && info.value.type == IOF_UNDEF);
    assert(array.type == IOF_UNDEF && array.size == 0 && array.array == NULL);
    assert(query.keys == NULL && query.nqual == 0 && app.cmd == NULL && app.maxprocs == 0 && app.ninfo == 0);
    assert(attribute.name == NULL && attribute.string[0] == '\0' && attribute.description == NULL);
}

static void test_processes(void)
{
    iof_proc_t *procs, other;
    iof_nspace_t name;
    iof_key_t key;
    iof_info_t info;
    const char *none = NULL;

    IOF_PROC_CREATE(procs, 2);
    assert(procs != NULL);
    IOF_PROC_LOAD(&procs[0], "job", 3);
    IOF_LOAD_PROCID(&procs[1], "job", IOF_RANK_WILDCARD);
    assert(IOF_CHECK_PROCID(&procs[0], &procs[1]));
    assert(!IOF_PROCID_INVALID(&procs[0]));
    IOF_PROC_CONSTRUCT(&other);
    assert(IOF_PROCID_INVALID(&other) && !IOF_CHECK_PROCID(&procs[0], &other));
    IOF_XFER_PROCID(&other, &procs[0]);
    assert(other.rank == 3 && IOF_CHECK_NSPACE(other.nspace, "job") && !IOF_CHECK_NSPACE(other.nspace, "jobs"));
    assert(IOF_RANK_IS_VALID(other.rank) && !IOF_RANK_IS_VALID(IOF_RANK_UNDEF));
    assert(IOF_CHECK_RANK(2u, 2u) && !IOF_CHECK_RANK(2u, 3u));
    IOF_PROC_DESTRUCT(&other);
    IOF_PROC_FREE(procs, 2);
    assert(procs == NULL);
    IOF_PROC_CREATE(procs, 1);
    IOF_PROC_RELEASE(procs);
    assert(procs == NULL);

    memset(name, 'x', sizeof name);
    IOF_LOAD_NSPACE(name, "job");
    assert(strcmp(name, "job") == 0 && name[IOF_MAX_NSLEN] == '\0' && !IOF_NSPACE_INVALID(name));
    IOF_LOAD_NSPACE(name, none);
    assert(IOF_NSPACE_INVALID(name));
    IOF_LOAD_KEY(key, IOF_IOF_CACHE_SIZE);
    assert(IOF_CHECK_RESERVED_KEY(key) && !IOF_CHECK_RESERVED_KEY("mine"));
    IOF_INFO_CONSTRUCT(&info);
    IOF_LOAD_KEY(info.key, key);
    assert(IOF_CHECK_KEY(&info, IOF_IOF_CACHE_SIZE) && !IOF_CHECK_KEY(&info, IOF_IOF_COMPLETE));
}

static void test_infos(void)
{
    iof_info_t *infos, *listed, single;
    iof_data_array_t array, *given;
    iof_value_t *values, *copy, value;
    iof_status_t status;
    uint32_t number = 7, *unloaded = &number;
    size_t size;
    bool no = false;
    void *list;

    IOF_INFO_CREATE(infos, 3);
    IOF_INFO_LOAD(&infos[0], IOF_IOF_CACHE_SIZE, &number, IOF_UINT32);
    IOF_INFO_LOAD(&infos[1], IOF_SERVER_NSPACE, "job", IOF_STRING);
    IOF_INFO_XFER(&infos[2], &infos[1]);
    assert(strcmp(infos[2].value.data.string, "job") == 0);
    IOF_INFO_REQUIRED(&infos[0]);
    assert(IOF_INFO_IS_REQUIRED(&infos[0]) && !IOF_INFO_IS_OPTIONAL(&infos[0]));
    IOF_INFO_OPTIONAL(&infos[0]);
    assert(!IOF_INFO_IS_REQUIRED(&infos[0]) && IOF_INFO_IS_OPTIONAL(&infos[0]));
    IOF_INFO_SET_END(&infos[2]);
    assert(IOF_INFO_IS_END(&infos[2]) && !IOF_INFO_IS_END(&infos[0]));
    IOF_INFO_FREE(infos, 3);
    assert(infos == NULL);
    IOF_INFO_CREATE(infos, 2);
    assert(IOF_INFO_IS_END(&infos[1]) && !IOF_INFO_IS_END(&infos[0]));
    IOF_INFO_FREE(infos, 2);

    IOF_INFO_LOAD(&single, IOF_IOF_COMPLETE, NULL, IOF_BOOL);
    assert(IOF_INFO_TRUE(&single));
    IOF_INFO_DESTRUCT(&single);
    IOF_INFO_LOAD(&single, IOF_IOF_COMPLETE, &no, IOF_BOOL);
    assert(!IOF_INFO_TRUE(&single));
    IOF_INFO_DESTRUCT(&single);

    IOF_INFO_LIST_START(list);
    IOF_INFO_LIST_ADD(status, list, IOF_IOF_CACHE_SIZE, &number, IOF_UINT32);
    assert(status == IOF_SUCCESS);
    IOF_INFO_LOAD(&single, IOF_SERVER_NSPACE, "job", IOF_STRING);
    IOF_INFO_LIST_XFER(status, list, &single);
    assert(status == IOF_SUCCESS);
    IOF_INFO_DESTRUCT(&single);
    IOF_INFO_LIST_CONVERT(status, list, &array);
    assert(status == IOF_SUCCESS && array.size == 2);
    listed = (iof_info_t *)array.array;
    assert(IOF_CHECK_KEY(&listed[1], IOF_SERVER_NSPACE));
    IOF_INFO_LIST_RELEASE(list);
    IOF_DATA_ARRAY_DESTRUCT(&array);
    given = (iof_data_array_t *)calloc(1, sizeof *given);
    IOF_DATA_ARRAY_FREE(given);
    assert(given == NULL);

    IOF_VALUE_CONSTRUCT(&value);
    assert(value.type == IOF_UNDEF);
    assert(IOF_VALUE_LOAD(&value, &number, IOF_UINT32) == IOF_SUCCESS);
    number = 0;
    IOF_VALUE_UNLOAD(status, &value, &unloaded, &size);
    assert(status == IOF_SUCCESS && number == 7 && size == sizeof number);
    IOF_VALUE_DESTRUCT(&value);
    IOF_VALUE_CREATE(values, 2);
    assert(IOF_VALUE_LOAD(&values[0], "text", IOF_STRING) == IOF_SUCCESS);
    copy = &values[1];
    IOF_VALUE_XFER(status, copy, &values[0]);
    assert(status == IOF_SUCCESS && strcmp(values[1].data.string, "text") == 0);
    copy = NULL;
    IOF_VALUE_XFER(status, copy, &values[0]);
    assert(status == IOF_SUCCESS && strcmp(copy->data.string, "text") == 0);
    IOF_VALUE_RELEASE(copy);
    IOF_VALUE_FREE(values, 2);
    IOF_VALUE_CREATE(values, 1);
    IOF_VALUE_RELEASE(values);
    assert(values == NULL);
}

static void test_arrays(void)
{
    iof_query_t *queries, query;
    iof_app_t *apps, app;
    iof_proc_info_t *table, row;
    iof_byte_object_t *objects, object;
    iof_envar_t *changes, change;
    iof_status_t status;
    char **texts = NULL;
    int count;

    IOF_QUERY_CREATE(queries, 2);
    IOF_ARGV_APPEND(status, queries[0].keys, IOF_QUERY_NAMESPACES);
    assert(status == IOF_SUCCESS);
    IOF_QUERY_QUALIFIERS_CREATE(&queries[0], 1);
    IOF_INFO_LOAD(&queries[0].qualifiers[0], IOF_NSPACE, "job", IOF_STRING);
    IOF_QUERY_FREE(queries, 2);
    IOF_QUERY_CREATE(queries, 1);
    IOF_QUERY_RELEASE(queries);
    assert(queries == NULL);
    IOF_QUERY_CONSTRUCT(&query);
    IOF_QUERY_DESTRUCT(&query);

    IOF_APP_CREATE(apps, 2);
    apps[1].cmd = strdup("true");
    IOF_ARGV_APPEND(status, apps[1].argv, "true");
    IOF_ARGV_APPEND(status, apps[1].env, "A=b");
    IOF_APP_INFO_CREATE(&apps[1], 1);
    IOF_INFO_LOAD(&apps[1].info[0], IOF_NSPACE, "job", IOF_STRING);
    IOF_APP_FREE(apps, 2);
    IOF_APP_CREATE(apps, 1);
    IOF_APP_RELEASE(apps);
    assert(apps == NULL);
    IOF_APP_CONSTRUCT(&app);
    IOF_APP_DESTRUCT(&app);

    IOF_PROC_INFO_CREATE(table, 1);
    table[0].hostname = strdup("node");
    IOF_PROC_INFO_RELEASE(table);
    IOF_PROC_INFO_CREATE(table, 2);
    table[1].executable_name = strdup("program");
    IOF_PROC_INFO_FREE(table, 2);
    assert(table == NULL);
    IOF_PROC_INFO_CONSTRUCT(&row);
    IOF_PROC_INFO_DESTRUCT(&row);

    IOF_BYTE_OBJECT_CREATE(objects, 2);
    IOF_BYTE_OBJECT_LOAD(&objects[1], strdup("bytes"), 5);
    IOF_BYTE_OBJECT_FREE(objects, 2);
    IOF_BYTE_OBJECT_CREATE(objects, 1);
    IOF_BYTE_OBJECT_RELEASE(objects);
    assert(objects == NULL);
    IOF_BYTE_OBJECT_CONSTRUCT(&object);
    IOF_BYTE_OBJECT_DESTRUCT(&object);

    IOF_ENVAR_CREATE(changes, 1);
    IOF_ENVAR_LOAD(&changes[0], "PATH", "/bin", ':');
    assert(strcmp(changes[0].envar, "PATH") == 0 && changes[0].separator == ':');
    IOF_ENVAR_FREE(changes, 1);
    IOF_ENVAR_CONSTRUCT(&change);
    IOF_ENVAR_DESTRUCT(&change);

    for (count = 0; count < 100; count++) {
        IOF_ARGV_APPEND(status, texts, "text");
        assert(status == IOF_SUCCESS);
    }
    assert(iof_Argv_append_nosize(NULL, "text") == IOF_ERR_BAD_PARAM);
    assert(iof_Argv_append_nosize(&texts, NULL) == IOF_ERR_BAD_PARAM);
    IOF_ARGV_COUNT(count, texts);
    assert(count == 100 && strcmp(texts[99], "text") == 0 && texts[100] == NULL);
    IOF_ARGV_FREE(texts);
    assert(texts == NULL);
    IOF_ARGV_COUNT(count, texts);
    assert(count == 0);
}

static void test_attributes(void)
{
    iof_regattr_t *attributes, single;
    IOF_REGATTR_CREATE(attributes, 2);
    IOF_REGATTR_LOAD(&attributes[0], "PMIX_IOF_CACHE_SIZE", IOF_IOF_CACHE_SIZE, IOF_UINT32, "its meaning");
    IOF_REGATTR_XFER(&attributes[1], &attributes[0]);
    assert(strcmp(attributes[1].name, "PMIX_IOF_CACHE_SIZE") == 0 && attributes[1].type == IOF_UINT32);
    assert(strcmp(attributes[1].string, IOF_IOF_CACHE_SIZE) == 0);
    assert(strcmp(attributes[1].description[0], "its meaning") == 0);
    IOF_REGATTR_FREE(attributes, 2);
    assert(attributes == NULL);
    IOF_REGATTR_CONSTRUCT(&single);
    IOF_REGATTR_DESTRUCT(&single);
}

static void test_texts(void)
{
    iof_status_t status;
    char **texts, **copy, **environment = NULL, *joined;
    int count;

    IOF_ARGV_SPLIT(texts, ",one,,two,", ',');
    IOF_ARGV_COUNT(count, texts);
    assert(count == 2 && strcmp(texts[0], "one") == 0 && strcmp(texts[1], "two") == 0);
    IOF_ARGV_PREPEND(status, texts, "zero");
    assert(status == IOF_SUCCESS);
    IOF_ARGV_APPEND_UNIQUE(status, &texts, "one");
    assert(status == IOF_SUCCESS);
    IOF_ARGV_APPEND_UNIQUE(status, &texts, "three");
    assert(status == IOF_SUCCESS);
    IOF_ARGV_COPY(copy, texts);
    IOF_ARGV_FREE(texts);
    IOF_ARGV_JOIN(joined, copy, ' ');
    assert(strcmp(joined, "zero one two three") == 0);
    free(joined);
    IOF_ARGV_FREE(copy);
    IOF_ARGV_JOIN(joined, copy, ' ');
    assert(strcmp(joined, "") == 0);
    free(joined);
    IOF_ARGV_SPLIT(texts, ",", ',');
    assert(texts == NULL && iof_Argv_split(NULL, ',') == NULL && iof_Argv_copy(NULL) == NULL);
    assert(iof_Argv_prepend_nosize(NULL, "text") == IOF_ERR_BAD_PARAM);

    IOF_SETENV(status, "NAME", "old", &environment);
    assert(status == IOF_SUCCESS);
    IOF_SETENV(status, "NAMED", NULL, &environment);
    assert(status == IOF_SUCCESS);
    IOF_SETENV(status, "NAME", "new", &environment);
    assert(status == IOF_SUCCESS && iof_Setenv("NAME", "newer", false, &environment) == IOF_ERR_EXISTS);
    assert(strcmp(environment[0], "NAME=new") == 0 && strcmp(environment[1], "NAMED=") == 0 && !environment[2]);
    IOF_ARGV_FREE(environment);
}

static void test_data(void)
{
    iof_data_array_t array, *created;
    iof_info_t info;
    iof_proc_t one, other;
    iof_value_t value;
    iof_status_t status;
    uint16_t small = 300;
    long number = 0;

    IOF_DATA_ARRAY_CREATE(created, 2, IOF_INFO);
    assert(created->size == 2 && created->type == IOF_INFO);
    IOF_INFO_LOAD(&((iof_info_t *)created->array)[1], IOF_NSPACE, "job", IOF_STRING);
    IOF_DATA_ARRAY_FREE(created);
    IOF_DATA_ARRAY_CONSTRUCT(&array, 3, IOF_UINT64);
    assert(array.size == 3 && ((uint64_t *)array.array)[2] == 0);
    IOF_DATA_ARRAY_DESTRUCT(&array);
    IOF_DATA_ARRAY_INIT(&array, IOF_PROC);
    assert(array.size == 0 && array.array == NULL && array.type == IOF_PROC);
    IOF_DATA_ARRAY_CONSTRUCT(&array, SIZE_MAX, IOF_INFO);
    assert(array.size == 0 && array.array == NULL);

    IOF_INFO_CONSTRUCT(&info);
    IOF_INFO_SET_PERSISTENT(&info);
    assert(IOF_INFO_IS_PERSISTENT(&info) && !IOF_INFO_WAS_PROCESSED(&info) && !IOF_INFO_IS_QUALIFIER(&info));
    IOF_INFO_PROCESSED(&info);
    IOF_INFO_SET_QUALIFIER(&info);
    assert(IOF_INFO_WAS_PROCESSED(&info) && IOF_INFO_IS_QUALIFIER(&info) && !IOF_INFO_IS_REQUIRED(&info));

    IOF_LOAD_PROCID(&one, "job", 7);
    IOF_PROCID_XFER(&other, &one);
    assert(IOF_CHECK_PROCID(&one, &other));
    assert(IOF_VALUE_LOAD(&value, &small, IOF_UINT16) == IOF_SUCCESS);
    IOF_VALUE_GET_NUMBER(status, &value, number, long);
    assert(status == IOF_SUCCESS && number == 300);
    assert(IOF_VALUE_LOAD(&value, "text", IOF_UNDEF) == IOF_ERR_UNKNOWN_DATA_TYPE);
    assert(IOF_VALUE_LOAD(&value, "text", IOF_STRING) == IOF_SUCCESS);
    IOF_VALUE_GET_NUMBER(status, &value, number, long);
    assert(status == IOF_ERR_BAD_PARAM);
    iof_value_t copy;
    IOF_VALUE_XFER_DIRECT(status, &copy, &value);
    assert(status == IOF_SUCCESS && strcmp(copy.data.string, "text") == 0);
    IOF_VALUE_DESTRUCT(&value);
    IOF_VALUE_DESTRUCT(&copy);
}

int main(void)
{
    test_declarations();
    test_attributes();
    test_texts();
    test_data();
    test_processes();
    test_infos();
    test_arrays();
    puts("done");
    return 0;
}
