/* A CUPTI without a GPU: the real header's records, handed over through the real callbacks. */
#include <stdlib.h>
#include <string.h>
#include <cuda.h>
#include <cupti.h>

static CUpti_BuffersCallbackRequestFunc request;
static CUpti_BuffersCallbackCompleteFunc complete;
static uint64_t clock_ns = 1000;
static int enabled;

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc r, CUpti_BuffersCallbackCompleteFunc c) {
    request = r, complete = c;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) { return enabled++, CUPTI_SUCCESS; }
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) { return enabled--, CUPTI_SUCCESS; }
CUptiResult cuptiGetTimestamp(uint64_t *stamp) { return *stamp = clock_ns += 1000, CUPTI_SUCCESS; }
CUptiResult cuptiGetResultString(CUptiResult code, const char **text) { return *text = "STAND_IN", CUPTI_SUCCESS; }
CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t cbid, const char **name) {
    *name = domain == CUPTI_CB_DOMAIN_DRIVER_API ? "cuLaunchKernelEx" : "cudaLaunchKernel_v7000";
    return CUPTI_SUCCESS;
}

static size_t size_of(CUpti_ActivityKind kind) {
    switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(KERNEL);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(MEMCPY);
    case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(MEMSET);
    default: return sizeof(CUpti_ActivityAPI);
    }
}
CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, CUpti_Activity **record) {
    uint8_t *next = *record ? (uint8_t *)*record + size_of((*record)->kind) : buffer;
    if (next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)next;
    return CUPTI_SUCCESS;
}

/* Five calls of the test begin at 2000, 6000, ...: each gets a launch at +100, its kernel, a copy and a memset. */
CUptiResult cuptiActivityFlushAll(uint32_t flag) {
    uint8_t *buffer, *at;
    size_t size, most;
    if (!enabled) return CUPTI_ERROR_NOT_INITIALIZED;
    request(&buffer, &size, &most);
    at = buffer;
    for (int call = 0; call < 5; call++) {
        uint64_t start = 2000 + 4000 * call;
        CUpti_ActivityAPI api = {.kind = CUPTI_ACTIVITY_KIND_RUNTIME, .cbid = 211, .start = start + 100, .end = start + 300,
                                 .threadId = 7, .correlationId = 10 + call};
        CUpti_ActivityAPI inner = {.kind = CUPTI_ACTIVITY_KIND_DRIVER, .cbid = 652, .start = start + 150, .end = start + 250,
                                   .threadId = 7, .correlationId = 10 + call};
        KERNEL kernel = {.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, .start = start + 400, .end = start + 900,
                         .registersPerThread = 40, .gridX = 132, .gridY = 2, .gridZ = 3, .blockX = 256, .blockY = 4, .blockZ = 5,
                         .staticSharedMemory = 1024, .dynamicSharedMemory = 65536, .correlationId = 10 + call,
                         .name = "_Z7softmaxPKfPfi"};
        MEMCPY copy = {.kind = CUPTI_ACTIVITY_KIND_MEMCPY, .copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_DTOH, .bytes = 4096,
                       .start = start + 1000, .end = start + 1100, .correlationId = 90 + call};
        MEMSET set = {.kind = CUPTI_ACTIVITY_KIND_MEMSET, .bytes = 512, .start = start + 1200, .end = start + 1250,
                      .correlationId = 70 + call};
        KERNEL untimed = {.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, .name = "untimed"};
        memcpy(at, &api, sizeof api), at += sizeof api;
        memcpy(at, &inner, sizeof inner), at += sizeof inner;
        memcpy(at, &kernel, sizeof kernel), at += sizeof kernel;
        memcpy(at, &copy, sizeof copy), at += sizeof copy;
        memcpy(at, &set, sizeof set), at += sizeof set;
        memcpy(at, &untimed, sizeof untimed), at += sizeof untimed;
    }
    complete(NULL, 0, buffer, size, at - buffer);
    return CUPTI_SUCCESS;
}
