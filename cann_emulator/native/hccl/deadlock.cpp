// Finds ranks of a communicator that wait for each other and will never go on: two ranks that both send first, a rank
// in a collective while another waits for its message. Hardware stands still there until HCCL_EXEC_TIMEOUT.
//
// A rank executes its operations one after the other. So a rank waits for another one's operation to end where that
// operation is not the counterpart of its own. While neither of the two begins another operation this stays so: sets
// of open messages only shrink, and what a channel holds is moved by its two ranks only. Hence a circle of such waits
// whose operations are the same before and after looking is real, however slowly the ranks run.
#include <vector>

#include "peers.h"

namespace hccl {

bool Peers::waits_for(uint32_t rank, uint32_t other) const {
    const auto& waiting = segment.rank(rank);
    const auto& busy = segment.rank(other);
    const Op doing = busy.doing.load();
    if (rank == other || doing == Op::none || waiting.doing.load() == Op::none) return false;
    if (waiting.current.sequence)   // in a collective: the other one is in no collective and has not come to this step
        return !busy.current.sequence && busy.step.load() < waiting.step.load();
    const auto holds_pieces = [](const Channel& channel) { return channel.taken.load() != channel.posted.load(); };
    return (waiting.sending.has(other) && !busy.receiving.has(rank) && holds_pieces(segment.channel(rank, other))) ||
           (waiting.receiving.has(other) && !busy.sending.has(rank) && !holds_pieces(segment.channel(other, rank)));
}

std::string Peers::deadlock() const {
    std::vector<uint64_t> operations(size());
    for (uint32_t rank = 0; rank < size(); ++rank) operations[rank] = segment.rank(rank).operations.load();

    // Breadth first from this rank, remembering who led to whom.
    std::vector<uint32_t> found{me}, from(size(), size());
    for (size_t next = 0; next < found.size(); ++next) {
        const uint32_t rank = found[next];
        if (rank != me && waits_for(rank, me)) {
            std::vector<uint32_t> circle;
            for (uint32_t each = rank; each != me; each = from[each]) circle.insert(circle.begin(), each);
            circle.insert(circle.begin(), me);
            std::string text;
            for (size_t i = 0; i < circle.size(); ++i) {
                const auto& peer = segment.rank(circle[i]);
                if (peer.operations.load() != operations[circle[i]]) return {};
                text += format("%srank %u is in %s and waits for rank %u", i ? "; " : "", circle[i],
                               describe(peer.current).c_str(), circle[(i + 1) % circle.size()]);
            }
            return text;
        }
        for (uint32_t other = 0; other < size(); ++other)
            if (other != me && from[other] == size() && waits_for(rank, other)) {
                from[other] = rank;
                found.push_back(other);
            }
    }
    return {};
}

}  // namespace hccl
