/* Python functions of kernels that are compiled already, so that nobody needs numba (native/__init__.py).
 *
 * A kernel is `int (void **, void **, int64_t *slots)`; how arguments lie in slots its code says (native/trampolines.py).
 * Python's limited API alone is used, so one library is for every release from 3.11 on. What numpy's arrays look like has
 * been the same since 1.7; the module looks at one it knows before it believes that.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <string.h>
#include <stdint.h>

#define SLOTS_MAX 96
#define CONTIGUOUS 0x0001
#define ALIGNED 0x0100
#define WRITEABLE 0x0400

typedef int (*trampoline)(void **result, void **failure, int64_t *slots);

/* A kernel, for each processor of PROCESSORS; table.c has all of them. */
struct kernel {
    const char *name;
    const char *code;
    trampoline by_processor[4];
};

extern const struct kernel KERNELS[];
extern const char SOURCES[];
extern int best_processor(void); /* -1: none */

/* numpy's array, as it has lain in memory since numpy 1.7. */
struct array {
    PyObject head;
    char *data;
    int dimensions;
    intptr_t *shape;
    intptr_t *strides;
    PyObject *base;
    PyObject *type;
    int flags;
};

/* What a function of the module is bound to. */
struct bound {
    PyObject head;
    const struct kernel *kernel;
    trampoline run;
    PyMethodDef method;
};

static PyTypeObject *array_type, *bound_type;
static const char TYPE_CODES[] = "BIQlq";
static const char *const TYPE_NAMES[] = {"uint8", "uint32", "uint64", "int32", "int64"};
static PyObject *types[5];

static int is_of_type(const struct array *array, int type) {
    if (array->type == types[type])
        return 1;
    return PyObject_RichCompareBool(array->type, types[type], Py_EQ);
}

/* Say what was given, for an error: an array's own text may be long. */
static const char *described(PyObject *given) {
    static char text[128];
    PyObject *type = PyObject_GetAttrString(given, "dtype"), *kind = NULL;
    if (type == NULL) {
        PyErr_Clear();
        type = PyObject_Type(given);
    }
    kind = type == NULL ? NULL : PyObject_Str(type);
    Py_ssize_t length = 0;
    const char *name = kind == NULL ? NULL : PyUnicode_AsUTF8AndSize(kind, &length);
    PyErr_Clear();
    PyOS_snprintf(text, sizeof text, "%.100s", name == NULL ? "something else" : name);
    Py_XDECREF(kind);
    Py_XDECREF(type);
    return text;
}

/* Put an array into slots. Returns the code behind it; NULL and an exception if it is another one. */
static const char *take_array(PyObject *given, const char *code, int64_t **slots, const struct kernel *kernel) {
    int type = (int)(strchr(TYPE_CODES, *code) - TYPE_CODES), dimensions = code[1] - '0', writes = code[2] != 'r';
    const struct array *array = (const struct array *)given;
    int needed = CONTIGUOUS | ALIGNED | (writes ? WRITEABLE : 0), is_right = 0;
    if (Py_TYPE(given) == array_type || PyType_IsSubtype(Py_TYPE(given), array_type))
        is_right = array->dimensions == dimensions && (array->flags & needed) == needed ? is_of_type(array, type) : 0;
    if (is_right <= 0) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "%s takes a%s C-contiguous %s array of %d dimension(s) here, not a %s", kernel->name,
                         writes ? " writable" : "", TYPE_NAMES[type], dimensions, described(given));
        return NULL;
    }
    *(*slots)++ = (int64_t)(intptr_t)array->data;
    for (int i = 0; i < dimensions; i++)
        *(*slots)++ = array->shape[i];
    return code + 2 + !writes;
}

/* Put a number into a slot, as its lowest 64 bits. Returns 0 or -1. */
static int take_number(PyObject *given, int64_t **slots) {
    unsigned long long number;
    if (PyLong_Check(given)) {
        number = PyLong_AsUnsignedLongLongMask(given);
    } else {
        PyObject *index = PyNumber_Index(given);
        if (index == NULL)
            return -1;
        number = PyLong_AsUnsignedLongLongMask(index);
        Py_DECREF(index);
    }
    if (number == (unsigned long long)-1 && PyErr_Occurred())
        return -1;
    *(*slots)++ = (int64_t)number;
    return 0;
}

static const char *take(PyObject *given, const char *code, int64_t **slots, const struct kernel *kernel);

static const char *take_members(PyObject *given, const char *code, int64_t **slots, const struct kernel *kernel) {
    Py_ssize_t at = 0, count = PyTuple_Check(given) ? PyTuple_Size(given) : -1;
    for (code++; *code != ')'; at++) {
        if (at >= count)
            break;
        code = take(PyTuple_GetItem(given, at), code, slots, kernel);
        if (code == NULL)
            return NULL;
    }
    if (at != count || *code != ')') {
        PyErr_Format(PyExc_TypeError, "%s takes another tuple than %R", kernel->name, given);
        return NULL;
    }
    return code + 1;
}

/* Put one argument into slots. Returns the code behind it; NULL and an exception if it is none that the code says. */
static const char *take(PyObject *given, const char *code, int64_t **slots, const struct kernel *kernel) {
    if (*code == '(')
        return take_members(given, code, slots, kernel);
    if (*code == 'b') {
        int is_true = PyObject_IsTrue(given);
        *(*slots)++ = is_true;
        return is_true < 0 ? NULL : code + 1;
    }
    if (*code == 'i')
        return take_number(given, slots) < 0 ? NULL : code + 1;
    return take_array(given, code, slots, kernel);
}

static PyObject *number_of(char code, int64_t slot) {
    if (code == 'b')
        return PyBool_FromLong(slot != 0);
    return code == 'u' ? PyLong_FromUnsignedLongLong((uint64_t)slot) : PyLong_FromLongLong(slot);
}

static PyObject *result_of(const char *code, const int64_t *slots) {
    if (*code == '\0')
        Py_RETURN_NONE;
    if (*code != '(')
        return number_of(*code, *slots);
    Py_ssize_t count = (Py_ssize_t)strlen(code) - 2;
    PyObject *results = PyTuple_New(count);
    for (Py_ssize_t i = 0; results != NULL && i < count; i++) {
        PyObject *number = number_of(code[i + 1], slots[i]);
        if (number == NULL || PyTuple_SetItem(results, i, number) < 0)
            Py_CLEAR(results);
    }
    return results;
}

static PyObject *call(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    const struct bound *bound = (const struct bound *)self;
    const struct kernel *kernel = bound->kernel;
    int64_t slots[SLOTS_MAX], *next = slots;
    const char *code = kernel->code;
    Py_ssize_t at = 0;
    for (; at < count && *code != ':'; at++) {
        code = take(arguments[at], code, &next, kernel);
        if (code == NULL)
            return NULL;
    }
    if (at != count || *code != ':')
        return PyErr_Format(PyExc_TypeError, "%s takes %s arguments than %zd", kernel->name,
                            at == count ? "more" : "fewer", count);
    void *result = NULL, *failure = NULL;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = bound->run(&result, &failure, slots);
    Py_END_ALLOW_THREADS
    if (status != 0)
        return PyErr_Format(PyExc_RuntimeError, "%s ended with status %d", kernel->name, status);
    return result_of(code + 1, slots);
}

static PyType_Slot bound_slots[] = {{0, NULL}};
static PyType_Spec bound_spec = {
    "headwater.kernels._machine.Bound", sizeof(struct bound), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    bound_slots};

static PyObject *function_of(const struct kernel *kernel, int processor) {
    struct bound *bound = (struct bound *)PyType_GenericAlloc(bound_type, 0);
    if (bound == NULL)
        return NULL;
    bound->kernel = kernel;
    bound->run = kernel->by_processor[processor];
    bound->method.ml_name = kernel->name;
    bound->method.ml_meth = (PyCFunction)(void (*)(void))call;
    bound->method.ml_flags = METH_FASTCALL;
    PyObject *function = PyCFunction_NewEx(&bound->method, (PyObject *)bound, NULL);
    Py_DECREF(bound); /* the function has it */
    return function;
}

/* Look at an array whose address, shape and type are known. Returns 0, or -1 and an exception. */
static int check_layout(PyObject *numpy) {
    PyObject *made = PyObject_CallMethod(numpy, "zeros", "((ii)O)", 3, 5, types[2]), *address = NULL;
    int is_known = 0;
    if (made == NULL)
        return -1;
    PyObject *inside = PyObject_GetAttrString(made, "ctypes");
    if (inside != NULL)
        address = PyObject_GetAttrString(inside, "data");
    if (address != NULL) {
        const struct array *array = (const struct array *)made;
        is_known = Py_TYPE(made) == array_type && array->dimensions == 2 && array->shape[0] == 3 && array->shape[1] == 5 &&
                   array->strides[0] == 40 && array->type == types[2] &&
                   (array->flags & (CONTIGUOUS | ALIGNED | WRITEABLE)) == (CONTIGUOUS | ALIGNED | WRITEABLE) &&
                   array->data == PyLong_AsVoidPtr(address);
        if (!is_known && !PyErr_Occurred())
            PyErr_SetString(PyExc_ImportError, "arrays of this numpy lie otherwise in memory than those this library knows");
    }
    Py_XDECREF(address);
    Py_XDECREF(inside);
    Py_DECREF(made);
    return is_known ? 0 : -1;
}

static int learn_types(PyObject *numpy) {
    array_type = (PyTypeObject *)PyObject_GetAttrString(numpy, "ndarray");
    if (array_type == NULL)
        return -1;
    for (int i = 0; i < 5; i++) {
        types[i] = PyObject_CallMethod(numpy, "dtype", "s", TYPE_NAMES[i]);
        if (types[i] == NULL)
            return -1;
    }
    return check_layout(numpy);
}

static int fill(PyObject *module) {
    int processor = best_processor();
    if (processor < 0) {
        PyErr_SetString(PyExc_ImportError, "this processor is older than those that the library has code for");
        return -1;
    }
    PyObject *numpy = PyImport_ImportModule("numpy");
    if (numpy == NULL)
        return -1;
    int failed = learn_types(numpy);
    Py_DECREF(numpy);
    bound_type = failed ? NULL : (PyTypeObject *)PyType_FromSpec(&bound_spec);
    if (bound_type == NULL)
        return -1;
    PyObject *functions = PyDict_New();
    for (const struct kernel *kernel = KERNELS; functions != NULL && kernel->name != NULL; kernel++) {
        PyObject *function = function_of(kernel, processor);
        if (function == NULL || PyDict_SetItemString(functions, kernel->name, function) < 0)
            Py_CLEAR(functions);
        Py_XDECREF(function);
    }
    if (functions == NULL || PyModule_AddObjectRef(module, "KERNELS", functions) < 0)
        return -1;
    Py_DECREF(functions);
    if (PyModule_AddIntConstant(module, "PROCESSOR", processor) < 0)
        return -1;
    return PyModule_AddStringConstant(module, "SOURCES", SOURCES);
}

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_machine", "Kernels, compiled. KERNELS: functions by name. SOURCES: a hash of what they are made of.",
    -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__machine(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && fill(module) < 0)
        Py_CLEAR(module);
    return module;
}
