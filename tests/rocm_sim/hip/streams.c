/* Streams: each is a thread that does its work in order, so what is asynchronous on a GPU is late here too.
 *
 * A stream counts what it was given and what it has done; "after ticket n of stream s" is all that synchronising
 * means. Streams that are destroyed are used again, never freed, so a ticket stays valid for good. The null stream of a
 * device is the legacy one: in order with the device's other streams, except those made with hipStreamNonBlocking.
 *
 * Faults of "stream": delay=MICROSECONDS before a stream's operation, hold=1: no stream does anything until the fault
 * is taken away. */
#include "sim.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NON_BLOCKING = 1 };

struct work {
    void (*run)(void *);
    void *data;
    struct work *next;
    size_t waits;
    struct dependency after[];
};

struct stream {
    bool null, destroyed;
    int device, priority;
    unsigned flags;
    uint64_t submitted, done;
    struct work *first, **last;
    struct stream *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct stream *streams;
static __thread struct stream *working; /* the stream whose thread this is */
static struct rocmsim_call operations = {.name = "stream"};

static bool at_once(const struct work *work) { /* under the lock */
    long hold;
    if (rocmsim_find_fault("stream", "hold", 1, &hold) && hold) return false;
    for (size_t i = 0; i < work->waits; i++)
        if (work->after[i].stream->done < work->after[i].ticket) return false;
    return true;
}

static void *serve(void *argument) {
    struct stream *stream = working = argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!stream->first || !at_once(stream->first)) pthread_cond_wait(&changed, &lock);
        struct work *work = stream->first;
        stream->first = work->next;
        if (!stream->first) stream->last = &stream->first;
        pthread_mutex_unlock(&lock);
        long n = rocmsim_enter(&operations), delay;
        if (rocmsim_find_fault("stream", "delay", n, &delay)) usleep((useconds_t)delay);
        if (work->run) work->run(work->data);
        free(work->data);
        free(work);
        pthread_mutex_lock(&lock);
        stream->done++;
        pthread_cond_broadcast(&changed);
    }
    return NULL;
}

static struct stream *make(bool null, int device, unsigned flags, int priority) { /* under the lock */
    struct stream *stream = streams;
    while (stream && !(stream->destroyed && stream->done == stream->submitted)) stream = stream->next;
    if (!stream) {
        pthread_t thread;
        stream = calloc(1, sizeof *stream);
        stream->last = &stream->first;
        if (pthread_create(&thread, NULL, serve, stream)) {
            free(stream);
            return NULL;
        }
        pthread_detach(thread);
        stream->next = streams;
        streams = stream;
    }
    stream->null = null;
    stream->destroyed = false;
    stream->device = device;
    stream->flags = flags;
    stream->priority = priority;
    return stream;
}

static struct stream *null_stream(int device) { /* under the lock */
    for (struct stream *stream = streams; stream; stream = stream->next)
        if (stream->null && stream->device == device) return stream;
    return make(true, device, 0, 0);
}

struct stream *stream_of(void *handle) {
    pthread_mutex_lock(&lock);
    struct stream *found = NULL;
    if ((uintptr_t)handle <= 2) found = null_stream(current_device());
    for (struct stream *stream = streams; stream && !found; stream = stream->next)
        if (stream == handle && !stream->destroyed && !stream->null) found = stream;
    pthread_mutex_unlock(&lock);
    return found;
}

void wake_streams(void) {
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static bool ordered_with_null(const struct stream *stream) { return !stream->null && !(stream->flags & NON_BLOCKING); }

uint64_t submit(struct stream *stream, void (*run)(void *), void *data, struct dependency after) {
    pthread_mutex_lock(&lock);
    size_t others = 0;
    for (struct stream *other = streams; other; other = other->next) others++;
    struct work *work = malloc(sizeof *work + (others + 1) * sizeof work->after[0]);
    *work = (struct work){.run = run, .data = data};
    if (after.stream) work->after[work->waits++] = after;
    for (struct stream *other = streams; other; other = other->next) {
        bool ordered = (stream->null && ordered_with_null(other)) || (other->null && ordered_with_null(stream));
        if (ordered && other->device == stream->device && other->done < other->submitted)
            work->after[work->waits++] = (struct dependency){other, other->submitted};
    }
    *stream->last = work;
    stream->last = &work->next;
    uint64_t ticket = ++stream->submitted;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return ticket;
}

bool reached(struct dependency at) {
    pthread_mutex_lock(&lock);
    bool done = !at.stream || at.stream->done >= at.ticket;
    pthread_mutex_unlock(&lock);
    return done;
}

void wait_for(struct dependency at) {
    if (!at.stream || at.stream == working) return; /* a callback that waits for its own stream waits for nothing */
    pthread_mutex_lock(&lock);
    while (at.stream->done < at.ticket) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

void synchronize(struct stream *stream) {
    /* An operation of its own, so that the null stream waits for those it is in order with. */
    if (stream != working) wait_for((struct dependency){stream, submit(stream, NULL, NULL, (struct dependency){0})});
}

void synchronize_all(void) {
    pthread_mutex_lock(&lock);
    for (struct stream *stream = streams; stream; stream = stream->next) {
        uint64_t ticket = stream->submitted;
        while (stream != working && stream->done < ticket) pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
}

long live_streams(void) {
    long count = 0;
    pthread_mutex_lock(&lock);
    for (struct stream *stream = streams; stream; stream = stream->next) count += !stream->null && !stream->destroyed;
    pthread_mutex_unlock(&lock);
    return count;
}

static hipError_t create(struct stream **made, unsigned flags, int priority) {
    if (!made || flags > NON_BLOCKING) return failed(hipErrorInvalidValue);
    if (!device_count()) return failed(hipErrorNoDevice);
    pthread_mutex_lock(&lock);
    *made = make(false, current_device(), flags, priority);
    pthread_mutex_unlock(&lock);
    return failed(*made ? hipSuccess : hipErrorOutOfMemory);
}

hipError_t hipStreamCreate(struct stream **stream) {
    CALL(hipStreamCreate);
    return create(stream, 0, 0);
}

hipError_t hipStreamCreateWithFlags(struct stream **stream, unsigned flags) {
    CALL(hipStreamCreateWithFlags);
    return create(stream, flags, 0);
}

hipError_t hipStreamCreateWithPriority(struct stream **stream, unsigned flags, int priority) {
    CALL(hipStreamCreateWithPriority);
    return create(stream, flags, priority);
}

/* What the stream was given is still done, as on a GPU. */
hipError_t hipStreamDestroy(void *handle) {
    CALL(hipStreamDestroy);
    struct stream *stream = stream_of(handle);
    if (!stream || stream->null) return failed(hipErrorInvalidHandle);
    pthread_mutex_lock(&lock);
    stream->destroyed = true;
    pthread_mutex_unlock(&lock);
    return hipSuccess;
}

hipError_t hipStreamSynchronize(void *handle) {
    CALL(hipStreamSynchronize);
    struct stream *stream = stream_of(handle);
    if (!stream) return failed(hipErrorInvalidHandle);
    synchronize(stream);
    return hipSuccess;
}

hipError_t hipDeviceSynchronize(void) {
    CALL(hipDeviceSynchronize);
    synchronize_all();
    return hipSuccess;
}

hipError_t hipStreamQuery(void *handle) {
    CALL(hipStreamQuery);
    struct stream *stream = stream_of(handle);
    if (!stream) return failed(hipErrorInvalidHandle);
    pthread_mutex_lock(&lock);
    bool idle = stream->done == stream->submitted;
    for (struct stream *other = streams; other && stream->null; other = other->next)
        if (ordered_with_null(other) && other->device == stream->device) idle &= other->done == other->submitted;
    pthread_mutex_unlock(&lock);
    return idle ? hipSuccess : hipErrorNotReady;
}

hipError_t hipStreamGetDevice(void *handle, int *device) {
    CALL(hipStreamGetDevice);
    struct stream *stream = stream_of(handle);
    if (!stream) return failed(hipErrorInvalidHandle);
    *device = stream->device;
    return hipSuccess;
}

int hipGetStreamDeviceId(void *handle) {
    static struct rocmsim_call call = {.name = "hipGetStreamDeviceId"};
    rocmsim_enter(&call);
    struct stream *stream = stream_of(handle);
    return stream ? stream->device : -1;
}

hipError_t hipStreamGetFlags(void *handle, unsigned *flags) {
    CALL(hipStreamGetFlags);
    struct stream *stream = stream_of(handle);
    if (!stream) return failed(hipErrorInvalidHandle);
    *flags = stream->flags;
    return hipSuccess;
}

hipError_t hipStreamGetPriority(void *handle, int *priority) {
    CALL(hipStreamGetPriority);
    struct stream *stream = stream_of(handle);
    if (!stream) return failed(hipErrorInvalidHandle);
    *priority = stream->priority;
    return hipSuccess;
}

hipError_t hipDeviceGetStreamPriorityRange(int *least, int *greatest) {
    CALL(hipDeviceGetStreamPriorityRange);
    *least = 1;
    *greatest = -1;
    return hipSuccess;
}

hipError_t hipStreamIsCapturing(void *handle, int *status) {
    CALL(hipStreamIsCapturing);
    if (!stream_of(handle)) return failed(hipErrorInvalidHandle);
    *status = 0; /* never */
    return hipSuccess;
}

struct host_function {
    void (*call)(void *);
    void *argument;
};

static void call_host(void *data) {
    struct host_function *function = data;
    function->call(function->argument);
}

hipError_t hipLaunchHostFunc(void *handle, void (*call)(void *), void *argument) {
    CALL(hipLaunchHostFunc);
    struct stream *stream = stream_of(handle);
    if (!stream || !call) return failed(hipErrorInvalidValue);
    struct host_function *function = malloc(sizeof *function);
    *function = (struct host_function){call, argument};
    submit(stream, call_host, function, (struct dependency){0});
    return hipSuccess;
}

struct callback {
    void (*call)(void *, hipError_t, void *);
    void *handle, *argument;
};

static void call_back(void *data) {
    struct callback *callback = data;
    callback->call(callback->handle, hipSuccess, callback->argument);
}

hipError_t hipStreamAddCallback(void *handle, void (*call)(void *, hipError_t, void *), void *argument, unsigned flags) {
    CALL(hipStreamAddCallback);
    struct stream *stream = stream_of(handle);
    if (!stream || !call || flags) return failed(hipErrorInvalidValue);
    struct callback *callback = malloc(sizeof *callback);
    *callback = (struct callback){call, handle, argument};
    submit(stream, call_back, callback, (struct dependency){0});
    return hipSuccess;
}
