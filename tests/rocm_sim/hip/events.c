/* Events: a place in a stream, and when the stream got there. Destroyed ones are used again, never freed. */
#include "sim.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct event {
    struct dependency place;
    struct timespec time;
    unsigned generation; /* of the last record; an earlier one that comes late writes no time */
    bool destroyed;
    struct event *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct event *events;

static struct event *event_of(void *handle) { /* under the lock */
    struct event *event = events;
    while (event && !(event == handle && !event->destroyed)) event = event->next;
    return event;
}

static bool place_of(void *handle, struct dependency *place) {
    pthread_mutex_lock(&lock);
    struct event *event = event_of(handle);
    if (event) *place = event->place;
    pthread_mutex_unlock(&lock);
    return event;
}

long live_events(void) {
    long count = 0;
    pthread_mutex_lock(&lock);
    for (struct event *event = events; event; event = event->next) count += !event->destroyed;
    pthread_mutex_unlock(&lock);
    return count;
}

static hipError_t create(struct event **made) {
    if (!made) return failed(hipErrorInvalidValue);
    if (!device_count()) return failed(hipErrorNoDevice);
    pthread_mutex_lock(&lock);
    struct event *event = events;
    while (event && !event->destroyed) event = event->next;
    if (!event) {
        event = calloc(1, sizeof *event);
        event->next = events;
        events = event;
    }
    event->destroyed = false;
    event->place = (struct dependency){0};
    event->generation++;
    pthread_mutex_unlock(&lock);
    *made = event;
    return hipSuccess;
}

hipError_t hipEventCreate(struct event **event) {
    CALL(hipEventCreate);
    return create(event);
}

hipError_t hipEventCreateWithFlags(struct event **event, unsigned flags) {
    CALL(hipEventCreateWithFlags);
    (void)flags;
    return create(event);
}

hipError_t hipEventDestroy(void *handle) {
    CALL(hipEventDestroy);
    pthread_mutex_lock(&lock);
    struct event *event = event_of(handle);
    if (event) event->destroyed = true;
    pthread_mutex_unlock(&lock);
    return failed(event ? hipSuccess : hipErrorInvalidHandle);
}

struct stamp {
    struct event *event;
    unsigned generation;
};

static void write_time(void *data) {
    struct stamp *stamp = data;
    pthread_mutex_lock(&lock);
    if (stamp->event->generation == stamp->generation) clock_gettime(CLOCK_MONOTONIC, &stamp->event->time);
    pthread_mutex_unlock(&lock);
}

hipError_t hipEventRecord(void *handle, void *stream_handle) {
    CALL(hipEventRecord);
    struct stream *stream = stream_of(stream_handle);
    if (!stream) return failed(hipErrorInvalidHandle);
    pthread_mutex_lock(&lock);
    struct event *event = event_of(handle);
    if (event) {
        struct stamp *stamp = malloc(sizeof *stamp);
        *stamp = (struct stamp){event, ++event->generation};
        event->place = (struct dependency){stream, submit(stream, write_time, stamp, (struct dependency){0})};
    }
    pthread_mutex_unlock(&lock);
    return failed(event ? hipSuccess : hipErrorInvalidHandle);
}

hipError_t hipEventSynchronize(void *handle) {
    CALL(hipEventSynchronize);
    struct dependency place;
    if (!place_of(handle, &place)) return failed(hipErrorInvalidHandle);
    wait_for(place);
    return hipSuccess;
}

hipError_t hipEventQuery(void *handle) {
    CALL(hipEventQuery);
    struct dependency place;
    if (!place_of(handle, &place)) return failed(hipErrorInvalidHandle);
    return reached(place) ? hipSuccess : hipErrorNotReady;
}

hipError_t hipStreamWaitEvent(void *stream_handle, void *handle, unsigned flags) {
    CALL(hipStreamWaitEvent);
    (void)flags;
    struct dependency place;
    struct stream *stream = stream_of(stream_handle);
    if (!stream || !place_of(handle, &place)) return failed(hipErrorInvalidHandle);
    submit(stream, NULL, NULL, place);
    return hipSuccess;
}

hipError_t hipEventElapsedTime(float *milliseconds, void *from, void *to) {
    CALL(hipEventElapsedTime);
    struct dependency places[2];
    if (!milliseconds) return failed(hipErrorInvalidValue);
    if (!place_of(from, &places[0]) || !place_of(to, &places[1]) || !places[0].stream || !places[1].stream)
        return failed(hipErrorInvalidHandle);
    if (!reached(places[0]) || !reached(places[1])) return failed(hipErrorNotReady);
    pthread_mutex_lock(&lock);
    struct timespec first = ((struct event *)from)->time, last = ((struct event *)to)->time;
    pthread_mutex_unlock(&lock);
    *milliseconds = (float)(last.tv_sec - first.tv_sec) * 1e3f + (float)(last.tv_nsec - first.tv_nsec) / 1e6f;
    return hipSuccess;
}
