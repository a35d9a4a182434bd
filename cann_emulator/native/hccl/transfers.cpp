// Point-to-point messages: each ordered pair of ranks has a ring of pieces of its own, so that a message needs nobody
// but its two ranks. Messages of a pair are matched in the order in which they were sent and received. As on
// hardware a send is finished only when its receiver has taken everything.
#include <algorithm>
#include <cstring>

#include "operation.h"

namespace hccl {
namespace {

class Message {
public:
    // `last`: no other message of the operation follows to or from the same rank.
    Message(Peers& peers, const Transfer& transfer, bool last)
        : peers(peers), transfer(transfer), last(last),
          channel(transfer.sends ? peers.segment.channel(peers.me, transfer.peer)
                                 : peers.segment.channel(transfer.peer, peers.me)),
          bytes(transfer.count * size_of(transfer.dtype)) {}

    // Moves what can be moved now; true if something was.
    bool advance() { return transfer.sends ? advance_send() : advance_receive(); }
    bool finished() const { return finished_; }
    bool follows(const Message& other) const { return &channel == &other.channel && transfer.sends == other.transfer.sends; }
    uint32_t peer() const { return transfer.peer; }

private:
    bool advance_send() {
        bool moved = false;
        const uint64_t taken = channel.taken.load(std::memory_order_acquire);
        uint64_t posted = channel.posted.load(std::memory_order_relaxed);
        for (; !all_posted && posted - taken < pieces_in_flight; moved = true) {
            const uint64_t length = std::min<uint64_t>(piece_bytes, bytes - done);
            channel.pieces[posted % pieces_in_flight] = {length, transfer.count, transfer.dtype, done == 0};
            std::memcpy(peers.segment.piece(peers.me, transfer.peer, posted), transfer.data + done, length);
            done += length;
            all_posted = done == bytes;
            channel.posted.store(++posted, std::memory_order_release);
        }
        if (moved) peers.tell(transfer.peer);
        finished_ = all_posted && taken == posted;
        if (finished_ && last) peers.self().sending.remove(transfer.peer);
        return moved || finished_;
    }

    bool advance_receive() {
        bool moved = false;
        const uint64_t posted = channel.posted.load(std::memory_order_acquire);
        uint64_t taken = channel.taken.load(std::memory_order_relaxed);
        for (; !finished_ && taken < posted; moved = true) {
            const auto piece = channel.pieces[taken % pieces_in_flight];
            if (piece.first) compare(piece);
            std::memcpy(transfer.data + done, peers.segment.piece(transfer.peer, peers.me, taken), piece.bytes);
            done += piece.bytes;
            finished_ = done == bytes;
            // Before the sender can know and go on: nobody may see it elsewhere and this rank still waiting for it.
            if (finished_ && last) peers.self().receiving.remove(transfer.peer);
            channel.taken.store(++taken, std::memory_order_release);
        }
        if (moved) peers.tell(transfer.peer);
        return moved;
    }

    void compare(const Channel::Piece& piece) {
        if (piece.count == transfer.count && piece.dtype == transfer.dtype) return;
        const auto message = [](uint64_t count, uint32_t dtype) {
            return format("%llu elements of %s", static_cast<unsigned long long>(count), name_of_dtype(dtype).c_str());
        };
        peers.fail({Fault::inconsistent, format("rank %u sends %s to rank %u, which receives %s, in %s.", transfer.peer,
                                                message(piece.count, piece.dtype).c_str(), peers.me,
                                                message(transfer.count, transfer.dtype).c_str(), peers.where().c_str())});
    }

    Peers& peers;
    const Transfer& transfer;
    const bool last;
    Channel& channel;
    const uint64_t bytes;
    uint64_t done = 0;
    bool all_posted = false;
    bool finished_ = false;
};

}  // namespace

void run_transfers(Peers& peers, const Operation& operation) {
    std::vector<Message> open;
    open.reserve(operation.transfers.size());
    const auto& transfers = operation.transfers;
    for (auto transfer = transfers.begin(); transfer != transfers.end(); ++transfer) {
        const bool last = std::none_of(transfer + 1, transfers.end(), [&](const Transfer& later) {
            return later.sends == transfer->sends && later.peer == transfer->peer;
        });
        open.emplace_back(peers, *transfer, last);
    }
    std::vector<Message*> waiting;
    for (auto& message : open) waiting.push_back(&message);

    const auto advance_all = [&] {
        bool moved = false;
        for (size_t i = 0; i < waiting.size(); ++i) {
            // Messages of one pair and direction go one after the other.
            const auto earlier = [&](const Message* other) { return waiting[i]->follows(*other); };
            if (std::none_of(waiting.begin(), waiting.begin() + i, earlier)) moved |= waiting[i]->advance();
        }
        const auto finished = [](const Message* message) { return message->finished(); };
        waiting.erase(std::remove_if(waiting.begin(), waiting.end(), finished), waiting.end());
        return moved || waiting.empty();
    };
    const auto missing = [&] {
        advance_all();   // what a rank left behind before it ended is not missing
        Peers::Ranks ranks;
        for (const auto* message : waiting) ranks.push_back(message->peer());
        std::sort(ranks.begin(), ranks.end());
        ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
        return ranks;
    };
    while (!waiting.empty()) {
        peers.check();
        peers.wait(peers.self().bell, advance_all, missing);
    }
}

}  // namespace hccl
