// The collectives, over slots in shared memory. Data that do not fit a slot go in several steps.
#include <algorithm>
#include <cstring>

#include "operation.h"
#include "reduce.h"

namespace hccl {
namespace {

// A reduction up to this size is computed by every rank itself: cheaper than a second meeting.
constexpr uint64_t small_bytes = 16 << 10;

uint64_t steps_for(uint64_t bytes, uint64_t per_step) { return std::max<uint64_t>(1, (bytes + per_step - 1) / per_step); }

void copy(void* to, const void* from, uint64_t bytes) {
    if (bytes && to != from) std::memmove(to, from, bytes);
}

class Collective {
public:
    Collective(Peers& peers, const Operation& operation)
        : peers(peers), operation(operation), call(operation.call), ranks(peers.size()), me(peers.me),
          item(call.op == Op::barrier ? 1 : size_of(call.dtype)), piece(slot_bytes / ranks / 64 * 64) {}

    void run() {
        announce();
        switch (call.op) {
            case Op::all_reduce: return all_reduce(true);
            case Op::reduce: return all_reduce(me == call.root);
            case Op::broadcast: return broadcast();
            case Op::all_gather: return all_gather();
            case Op::reduce_scatter: return reduce_scatter();
            case Op::scatter: return scatter();
            case Op::all_gather_v: return all_gather_v();
            case Op::reduce_scatter_v: return reduce_scatter_v();
            case Op::all_to_all:
            case Op::all_to_all_v:
            case Op::all_to_all_vc: return all_to_all();
            default: return meet();   // barrier
        }
    }

private:
    // ---- agreement: what each rank passed travels with the first step
    void announce() {
        const uint32_t parity = peers.out_parity();
        peers.self().calls[parity] = call;
        const auto publish = [&](uint64_t* target, const std::vector<uint64_t>& counts) {
            std::copy(counts.begin(), counts.end(), target);
        };
        publish(peers.segment.sent(me, parity), operation.send_counts);
        publish(peers.segment.expected(me, parity), operation.receive_counts);
    }

    void meet() {
        peers.meet();
        if (agreed) return;
        agreed = true;
        compare_calls();
        if (!info(call.op).equal_counts) compare_counts();
    }

    const Call& call_of(uint32_t rank) const { return peers.segment.rank(rank).calls[peers.in_parity()]; }

    void compare_calls() {
        const auto& op = info(call.op);
        const auto differs = [&](const Call& other) {
            return other.op != call.op || (call.op != Op::barrier && other.dtype != call.dtype) ||
                   (op.reduces && other.reduction != call.reduction) || (op.has_root && other.root != call.root) ||
                   (op.equal_counts && other.count != call.count);
        };
        bool same = true;
        for (uint32_t rank = 0; rank < ranks; ++rank) same = same && !differs(call_of(rank));
        if (same) return;
        std::vector<std::pair<std::string, Peers::Ranks>> callers;   // by what they called, lowest rank first
        for (uint32_t rank = 0; rank < ranks; ++rank) {
            const auto what = describe(call_of(rank));
            auto found = std::find_if(callers.begin(), callers.end(), [&](const auto& each) { return each.first == what; });
            if (found == callers.end()) found = callers.insert(callers.end(), {what, {}});
            found->second.push_back(rank);
        }
        std::string text = "in collective " + std::to_string(call.sequence) + " of " + peers.where();
        const char* separator = ": ";
        for (const auto& [what, who] : callers) {
            text += separator + Peers::list(who) + " called " + what;
            separator = "; ";
        }
        peers.fail({Fault::inconsistent, text + "."});
    }

    uint64_t sent(uint32_t from, uint32_t to) const { return peers.segment.sent(from, peers.in_parity())[to]; }
    uint64_t expected(uint32_t to, uint32_t from) const { return peers.segment.expected(to, peers.in_parity())[from]; }

    void compare_counts() {
        std::string text;
        int shown = 0;
        for (uint32_t from = 0; from < ranks; ++from)
            for (uint32_t to = 0; to < ranks; ++to) {
                const auto sends = sent(from, to), awaits = expected(to, from);
                if (sends == awaits || ++shown > 8) continue;
                text += format("%s rank %u sends %llu elements to rank %u, which expects %llu", text.empty() ? "" : ";",
                               from, static_cast<unsigned long long>(sends), to, static_cast<unsigned long long>(awaits));
            }
        if (shown > 8) text += format("; and %d more", shown - 8);
        if (shown)
            peers.fail({Fault::inconsistent, "in " + std::string(info(call.op).name) + ", collective " +
                                                 std::to_string(call.sequence) + " of " + peers.where() + ":" + text +
                                                 " (" + name_of_dtype(call.dtype) + ")."});
        for (uint32_t from = 0; from < ranks; ++from)
            for (uint32_t to = 0; to < ranks; ++to) largest = std::max(largest, sent(from, to) * item);
    }

    // ---- moving
    void reduce_slots(void* target, size_t offset, uint64_t bytes) {
        const void* sources[max_ranks];
        for (uint32_t rank = 0; rank < ranks; ++rank) sources[rank] = peers.in(rank) + offset;
        reduce(call.dtype, call.reduction, target, sources, ranks, bytes / item);
    }

    void all_reduce(bool wanted) {
        const uint64_t total = call.count * item;
        if (total <= small_bytes) {
            copy(peers.out(), operation.send, total);
            meet();
            if (wanted && total) reduce_slots(operation.receive, 0, total);
            return;
        }
        for (uint64_t done = 0; done < total; done += slot_bytes) {
            const uint64_t bytes = std::min<uint64_t>(slot_bytes, total - done);
            copy(peers.out(), operation.send + done, bytes);
            meet();
            // Each rank reduces its share of the slot and the others fetch it.
            const uint64_t share = (bytes / item + ranks - 1) / ranks * item;
            const auto begin = [&](uint32_t rank) { return std::min(bytes, share * rank); };
            if (const uint64_t mine = begin(me + 1) - begin(me)) reduce_slots(peers.out(), begin(me), mine);
            meet();
            for (uint32_t rank = 0; wanted && rank < ranks; ++rank)
                copy(operation.receive + done + begin(rank), peers.in(rank), begin(rank + 1) - begin(rank));
        }
    }

    void broadcast() {
        const uint64_t total = call.count * item;
        for (uint64_t step = 0, steps = steps_for(total, slot_bytes); step < steps; ++step) {
            const uint64_t done = step * slot_bytes, bytes = std::min<uint64_t>(slot_bytes, total - done);
            if (me == call.root) copy(peers.out(), operation.receive + done, bytes);
            meet();
            if (me != call.root) copy(operation.receive + done, peers.in(call.root), bytes);
        }
    }

    void all_gather() {
        const uint64_t total = call.count * item;
        for (uint64_t step = 0, steps = steps_for(total, slot_bytes); step < steps; ++step) {
            const uint64_t done = step * slot_bytes, bytes = std::min<uint64_t>(slot_bytes, total - done);
            copy(peers.out(), operation.send + done, bytes);
            meet();
            for (uint32_t rank = 0; rank < ranks; ++rank)
                copy(operation.receive + rank * total + done, peers.in(rank), bytes);
        }
    }

    void all_gather_v() {
        const auto& counts = operation.receive_counts;
        const uint64_t longest = *std::max_element(counts.begin(), counts.end()) * item;
        for (uint64_t step = 0, steps = steps_for(longest, slot_bytes); step < steps; ++step) {
            const auto part = [&](uint64_t total) {
                return std::min<uint64_t>(slot_bytes, total - std::min(total, step * slot_bytes));
            };
            copy(peers.out(), operation.send + step * slot_bytes, part(call.count * item));
            meet();
            for (uint32_t rank = 0; rank < ranks; ++rank)
                copy(operation.receive + operation.receive_offsets[rank] * item + step * slot_bytes, peers.in(rank),
                     part(counts[rank] * item));
        }
    }

    // Slots divided into one piece for each receiver.
    template <class Total, class Offset> void fill_pieces(uint64_t step, const Total& total, const Offset& offset) {
        for (uint32_t rank = 0; rank < ranks; ++rank)
            copy(peers.out() + rank * piece, operation.send + offset(rank) + step * piece, part(step, total(rank)));
    }
    uint64_t part(uint64_t step, uint64_t total) const {
        return std::min(piece, total - std::min(total, step * piece));
    }

    void reduce_scatter() {
        const uint64_t total = call.count * item;
        for (uint64_t step = 0, steps = steps_for(total, piece); step < steps; ++step) {
            fill_pieces(step, [&](uint32_t) { return total; }, [&](uint32_t rank) { return rank * total; });
            meet();
            if (const auto bytes = part(step, total)) reduce_slots(operation.receive + step * piece, me * piece, bytes);
        }
    }

    void reduce_scatter_v() {
        const auto& counts = operation.send_counts;
        const uint64_t longest = *std::max_element(counts.begin(), counts.end()) * item;
        for (uint64_t step = 0, steps = steps_for(longest, piece); step < steps; ++step) {
            fill_pieces(step, [&](uint32_t rank) { return counts[rank] * item; },
                        [&](uint32_t rank) { return operation.send_offsets[rank] * item; });
            meet();
            if (const auto bytes = part(step, call.count * item))
                reduce_slots(operation.receive + step * piece, me * piece, bytes);
        }
    }

    void scatter() {
        const uint64_t total = call.count * item;
        for (uint64_t step = 0, steps = steps_for(total, piece); step < steps; ++step) {
            if (me == call.root)
                fill_pieces(step, [&](uint32_t) { return total; }, [&](uint32_t rank) { return rank * total; });
            meet();
            copy(operation.receive + step * piece, peers.in(call.root) + me * piece, part(step, total));
        }
    }

    void all_to_all() {
        const bool even = call.op == Op::all_to_all;
        largest = even ? call.count * item : 0;
        const auto sends = [&](uint32_t rank) { return (even ? call.count : operation.send_counts[rank]) * item; };
        const auto awaits = [&](uint32_t rank) { return (even ? call.count : operation.receive_counts[rank]) * item; };
        const auto send_at = [&](uint32_t rank) { return (even ? rank * call.count : operation.send_offsets[rank]) * item; };
        const auto receive_at = [&](uint32_t rank) {
            return (even ? rank * call.count : operation.receive_offsets[rank]) * item;
        };
        // How many steps it takes is known after the first, with every rank's counts.
        uint64_t step = 0;
        do {
            fill_pieces(step, sends, send_at);
            meet();
            for (uint32_t rank = 0; rank < ranks; ++rank)
                copy(operation.receive + receive_at(rank) + step * piece, peers.in(rank) + me * piece,
                     part(step, awaits(rank)));
        } while (++step < steps_for(largest, piece));
    }

    Peers& peers;
    const Operation& operation;
    const Call& call;
    const uint32_t ranks, me;
    const uint64_t item;
    const uint64_t piece;
    bool agreed = false;
    uint64_t largest = 0;   // bytes of the longest message between two ranks
};

}  // namespace

void run_collective(Peers& peers, const Operation& operation) { Collective(peers, operation).run(); }

}  // namespace hccl
