// Reads begun by the threads of a GPU: NVM Express submission and completion queues, seen from the side that submits.
//
// One text for NVRTC and nvcc (the GPU, sm_70 and newer) and for the host's C++ compiler, which runs the same code in
// threads of the CPU. docs/contracts/nvme-queues.md tells the protocol. Sources: NVM Express Base Specification 2.0,
// sections 3.3.1 (queues, doorbells), 3.3.3 (entries), 4.1.1 (PRP); NVM Command Set Specification 1.0, 3.2.4 (Read).
//
// No thread ever waits for another: what is busy is left to whoever has it, and looked at again later. So any number
// of threads does, in any order, in one warp or many, and one thread keeps a whole queue filled.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef __CUDACC__

#define PENSTOCK_CODE static __device__ inline

// The other side is the host or a disk: system scope everywhere.
PENSTOCK_CODE u64 load(const u64 *at) {
    u64 value;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}
PENSTOCK_CODE u32 load_plain(const u32 *at) {
    u32 value;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}
PENSTOCK_CODE void store(u64 *at, u64 value) {
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
PENSTOCK_CODE void store_plain(u64 *at, u64 value) {
    asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
PENSTOCK_CODE void ring(u32 *doorbell, u32 value) {
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(doorbell), "r"(value) : "memory");
}
PENSTOCK_CODE u64 add(u64 *at, u64 by) {
    u64 before;
    asm volatile("atom.acq_rel.sys.add.u64 %0, [%1], %2;" : "=l"(before) : "l"(at), "l"(by) : "memory");
    return before;
}
PENSTOCK_CODE bool replace(u64 *at, u64 *expected, u64 value) {
    u64 before, wanted = *expected;
    asm volatile("atom.acq_rel.sys.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(before) : "l"(at), "l"(wanted), "l"(value) : "memory");
    *expected = before;
    return before == wanted;
}
PENSTOCK_CODE void rest(u32 idle) { __nanosleep(idle < 32 ? 32 * idle : 1000); }

#else

#include <sched.h>
#include <stddef.h>
#include <time.h>

#define PENSTOCK_CODE static inline

PENSTOCK_CODE u64 load(const u64 *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
PENSTOCK_CODE u32 load_plain(const u32 *at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
PENSTOCK_CODE void store(u64 *at, u64 value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
PENSTOCK_CODE void store_plain(u64 *at, u64 value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }
PENSTOCK_CODE void ring(u32 *doorbell, u32 value) { __atomic_store_n(doorbell, value, __ATOMIC_RELEASE); }
PENSTOCK_CODE u64 add(u64 *at, u64 by) { return __atomic_fetch_add(at, by, __ATOMIC_ACQ_REL); }
PENSTOCK_CODE bool replace(u64 *at, u64 *expected, u64 value) {
    return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}
PENSTOCK_CODE void rest(u32 idle) {
    if (idle < 8) {
        sched_yield();
        return;
    }
    struct timespec nap = {0, idle < 32 ? 20000 : 200000};
    nanosleep(&nap, 0);
}

#endif

struct Command {  // of 64 bytes; a read
    u8 opcode, flags;
    u16 id;
    u32 nsid;
    u64 unused;
    u64 metadata;
    u64 prp1, prp2;
    u64 lba;
    u16 last_block;  // how many blocks, less one
    u16 control;
    u32 more[3];
};

struct Completion {  // of 16 bytes
    u64 result;
    u16 sq_head, sq_id;
    u16 id, status;  // bit 0 of the status is the phase
};

struct Request {  // what the host wants read; its index is the command's id
    u64 lba, address;
    const u64 *pages;  // bus addresses of the page that `address` lies in, and of those behind it; null: just these
    u32 nsid, blocks;
};

struct Pair {  // one submission and one completion queue; counters only grow, a slot is its counter modulo the entries
    u64 reserved;   // submission slots that a thread has taken
    u64 published;  // of these, all before have been written, and the doorbell rung
    u64 consumed;   // of these, taken in by the controller, as far as its completions have told
    u64 reaped;     // completions taken
    u64 publishing, reaping;  // held by one thread
    u64 unused[2];  // a cache line a pair
};

struct Progress {
    u64 taken;      // requests, in the order of publication
    u64 completed;  // requests, in the order of completion
};

struct Work {
    // Only the submitting threads look at these.
    Progress *progress;
    Pair *pairs;
    u64 *written;  // for each submission slot: one more than the counter of the command that lies there
    // The controller sees these.
    Command *sq;
    Completion *cq;
    u32 *doorbells;  // of queue y, from 1 on: the submission tail at 2 y, the completion head at 2 y + 1, in strides;
                     // a disk's are its own registers, and at 0 and 1 lie those of its admin queue
    u64 *prp_lists;  // a page for each request
    // The host writes all but the last; `order` and `done` are as long as there are request ids.
    const u64 *list_pages;  // bus address of each page of `prp_lists`
    u32 *gone;  // not 0 once there is nothing to wait for: the controller has failed
    Request *requests;
    u32 *order;
    u64 *done;  // a lap (32 bits, from 1 on), the status (16) and the request (16), in one word
    u32 queues, entries, ids, block_shift;
    u32 sq_stride, cq_stride;  // entries from one queue to the next: each begins on a page
    u32 doorbell_stride, unused;  // words from one doorbell to the next
};

#define PENSTOCK_READ 2
#define PENSTOCK_PAGE 4096ull
#define PENSTOCK_NONE 0xffffffffu

// A request that nobody has taken, if there is one before the limit.
PENSTOCK_CODE u32 take(const Work *work, u64 limit) {
    u64 ticket = load(&work->progress->taken);
    while (ticket < limit) {
        // Read first: as soon as it is taken it may be done, and the host may write the place again.
        u32 id = load_plain(&work->order[ticket & (work->ids - 1)]);
        if (replace(&work->progress->taken, &ticket, ticket + 1)) return id;
    }
    return PENSTOCK_NONE;
}

PENSTOCK_CODE Command read_command(const Work *work, u32 id) {
    const Request *request = &work->requests[id];
    Command command = {};
    command.opcode = PENSTOCK_READ;
    command.id = (u16)id;
    command.nsid = request->nsid;
    command.lba = request->lba;
    command.last_block = (u16)(request->blocks - 1);
    u64 within = request->address & (PENSTOCK_PAGE - 1), first = request->address - within;
    u64 count = (within + ((u64)request->blocks << work->block_shift) + PENSTOCK_PAGE - 1) / PENSTOCK_PAGE;
    const u64 *pages = request->pages;
    command.prp1 = (pages ? pages[0] : first) + within;
    if (count > 2) {
        u64 *list = work->prp_lists + id * (PENSTOCK_PAGE / sizeof(u64));
        for (u64 i = 1; i < count; ++i) store_plain(list++, pages ? pages[i] : first + i * PENSTOCK_PAGE);
        command.prp2 = work->list_pages[id];
    } else if (count == 2) {
        command.prp2 = pages ? pages[1] : first + PENSTOCK_PAGE;
    }
    return command;
}

// The doorbell of a queue's submission tail (which = 0) or completion head (1); the first queue here is a disk's second.
PENSTOCK_CODE u32 *doorbell(const Work *work, u32 queue, u32 which) {
    return &work->doorbells[(2 * (queue + 1) + which) * work->doorbell_stride];
}

// Write the request's command into a slot of this queue; false if all are taken.
PENSTOCK_CODE bool submit(const Work *work, u32 queue, u32 id) {
    Pair *pair = &work->pairs[queue];
    u64 slot = load(&pair->reserved);
    do {  // one slot stays empty, or full would look like empty
        if (slot - load(&pair->consumed) >= work->entries - 1) return false;
    } while (!replace(&pair->reserved, &slot, slot + 1));
    u64 in_queue = slot & (work->entries - 1), at = queue * (u64)work->sq_stride + in_queue;
    union {
        Command command;
        u64 words[sizeof(Command) / sizeof(u64)];
    } entry;
    entry.command = read_command(work, id);
    for (u32 i = 0; i < sizeof(Command) / sizeof(u64); ++i) store_plain((u64 *)&work->sq[at] + i, entry.words[i]);
    store(&work->written[queue * (u64)work->entries + in_queue], slot + 1);
    return true;
}

// Ring the doorbell for all that is written without a gap.
PENSTOCK_CODE bool publish(const Work *work, u32 queue) {
    Pair *pair = &work->pairs[queue];
    u64 nobody = 0;
    if (load(&pair->published) == load(&pair->reserved) || !replace(&pair->publishing, &nobody, 1)) return false;
    const u64 *written = &work->written[queue * (u64)work->entries];
    u64 from = load(&pair->published), tail = from;
    while (load(&written[tail & (work->entries - 1)]) == tail + 1) ++tail;
    if (tail != from) {
        ring(doorbell(work, queue, 0), (u32)tail & (work->entries - 1));
        store(&pair->published, tail);
    }
    store(&pair->publishing, 0);
    return tail != from;
}

// Take the completions that are there, of whoever's commands.
PENSTOCK_CODE bool reap(const Work *work, u32 queue) {
    Pair *pair = &work->pairs[queue];
    u64 nobody = 0;
    if (!replace(&pair->reaping, &nobody, 1)) return false;
    const Completion *cq = &work->cq[queue * (u64)work->cq_stride];
    u64 mask = work->entries - 1, from = load(&pair->reaped), head = from, consumed = load(&pair->consumed);
    for (;;) {
        // In one word: the controller may be writing it.
        u64 word = load((const u64 *)&cq[head & mask] + 1);
        u64 phase = (head & work->entries) ? 0 : 1;
        if ((word >> 48 & 1) != phase) break;
        consumed += ((word & 0xffff) - consumed) & mask;
        u64 place = add(&work->progress->completed, 1);
        u64 lap = place / work->ids + 1;
        store(&work->done[place & (work->ids - 1)], lap << 32 | word >> 49 << 16 | (word >> 32 & 0xffff));
        ++head;
    }
    if (head != from) {
        ring(doorbell(work, queue, 1), (u32)(head & mask));
        store(&pair->consumed, consumed);
        store(&pair->reaped, head);
    }
    store(&pair->reaping, 0);
    return head != from;
}

// What one of the threads does: it helps until as many requests are done as have been published by now. A request of
// this launch that is late is then among those of a later one, whose threads wait for it.
PENSTOCK_CODE void serve(const Work *work, u32 thread, u64 limit) {
    u32 queue = thread % work->queues, held = PENSTOCK_NONE, idle = 0;
    while (load_plain(work->gone) == 0 && (held != PENSTOCK_NONE || load(&work->progress->completed) < limit)) {
        bool moved = false;
        if (held == PENSTOCK_NONE) held = take(work, limit);
        if (held != PENSTOCK_NONE && submit(work, queue, held)) {
            held = PENSTOCK_NONE;
            moved = true;
        }
        moved |= publish(work, queue);
        moved |= reap(work, queue);
        idle = moved ? 0 : idle + 1;
        if (idle) rest(idle);
    }
}

#ifdef __CUDACC__

extern "C" __global__ void penstock_serve(const Work work, u64 limit) {
    serve(&work, blockIdx.x * blockDim.x + threadIdx.x, limit);
}

#else

extern "C" void penstock_serve(const Work *work, u32 thread, u64 limit) { serve(work, thread, limit); }

extern "C" const u32 penstock_layout[] = {
    sizeof(Command), offsetof(Command, id), offsetof(Command, nsid), offsetof(Command, prp1),
    offsetof(Command, prp2), offsetof(Command, lba), offsetof(Command, last_block),
    sizeof(Completion), offsetof(Completion, sq_head), offsetof(Completion, sq_id), offsetof(Completion, id),
    offsetof(Completion, status),
    sizeof(Request), offsetof(Request, address), offsetof(Request, pages), offsetof(Request, nsid), offsetof(Request, blocks),
    sizeof(Pair), sizeof(Progress),
    sizeof(Work), offsetof(Work, sq), offsetof(Work, list_pages), offsetof(Work, gone), offsetof(Work, requests),
    offsetof(Work, queues), offsetof(Work, block_shift), offsetof(Work, cq_stride), offsetof(Work, doorbell_stride),
};

#endif
