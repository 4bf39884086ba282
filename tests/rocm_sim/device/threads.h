// The threads of a block: fibers of one CPU thread, which yield at barriers.
//
// A fiber runs one thread of the block after the other, and stops being shared when one of them waits at a barrier: a
// block without barriers costs one switch, one with them has a fiber for each of its threads.
#pragma once

static thread_local dim3 gridDim, blockDim, blockIdx, threadIdx;
static const int warpSize = 64;

namespace rocmsim {
enum { MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / 64, STACK = 128 << 10 };

struct fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[STACK]};
    unsigned thread;
    bool finished;
};

// Who has arrived at the barrier of a group of threads. Group 0 is the block, group 1 + w its warp w.
struct group {
    unsigned members, arrived, generation;
    void leave() {
        members--;
        release();
    }
    void release() {
        if (!members || arrived < members) return;
        arrived = 0;
        generation++;
    }
};

struct block_state {
    ucontext_t scheduler;
    std::vector<std::unique_ptr<fiber>> fibers;
    fiber *running;
    unsigned next, threads; // the first thread that no fiber has begun
    group groups[1 + MAX_WARPS];
    void (*body)(void *);
    void *argument;
    unsigned long long slots[MAX_THREADS]; // what warps exchange
};
static thread_local block_state block;

static inline dim3 place_of(unsigned thread) {
    return {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / (blockDim.x * blockDim.y)};
}
static inline unsigned thread_number() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }

static void run_threads() {
    fiber *self = block.running;
    while (block.next < block.threads) {
        self->thread = block.next++;
        threadIdx = place_of(self->thread);
        block.body(block.argument);
        block.groups[0].leave();
        block.groups[1 + self->thread / warpSize].leave();
    }
    self->finished = true;
    swapcontext(&self->context, &block.scheduler);
}

static void resume(fiber *one) {
    block.running = one;
    threadIdx = place_of(one->thread);
    swapcontext(&block.scheduler, &one->context);
}

static fiber *begin(size_t number) {
    if (block.fibers.size() == number) block.fibers.emplace_back(new fiber);
    fiber *one = block.fibers[number].get();
    one->finished = false;
    one->thread = block.next;
    getcontext(&one->context);
    one->context.uc_stack.ss_sp = one->stack.get();
    one->context.uc_stack.ss_size = STACK;
    one->context.uc_link = &block.scheduler;
    makecontext(&one->context, run_threads, 0);
    return one;
}

static void run_block() {
    block.next = 0;
    block.threads = blockDim.x * blockDim.y * blockDim.z;
    std::fill(std::begin(block.groups), std::end(block.groups), group{});
    block.groups[0].members = block.threads;
    for (unsigned i = 0; i < block.threads; i++) block.groups[1 + i / warpSize].members++;
    size_t begun = 0;
    while (block.next < block.threads) resume(begin(begun++));
    for (bool waiting = true; waiting;) {
        waiting = false;
        for (size_t i = 0; i < begun; i++)
            if (!block.fibers[i]->finished) {
                resume(block.fibers[i].get());
                waiting = true;
            }
    }
}

static void barrier(unsigned number) {
    group &group = block.groups[number];
    const unsigned generation = group.generation;
    group.arrived++;
    group.release();
    while (group.generation == generation) swapcontext(&block.running->context, &block.scheduler);
}

static inline unsigned warp_group() { return 1 + thread_number() / warpSize; }

// The value of thread `lane` of this warp; every living thread of the warp calls it together.
template <class T> static T exchange(T value, int lane) {
    static_assert(sizeof(T) <= sizeof block.slots[0], "too large to shuffle");
    const unsigned thread = thread_number();
    std::memcpy(&block.slots[thread], &value, sizeof value);
    barrier(warp_group());
    T got = value;
    if (lane >= 0 && lane < warpSize) std::memcpy(&got, &block.slots[thread / warpSize * warpSize + lane], sizeof got);
    barrier(warp_group());
    return got;
}
} // namespace rocmsim

static inline void __syncthreads() { rocmsim::barrier(0); }
static inline void __syncwarp(unsigned long long = 0) { rocmsim::barrier(rocmsim::warp_group()); }
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() {}
