// Reading whole messages from ZeroMQ, for both ends of the weight transport.
#pragma once

#include <zmq.hpp>

namespace troupe {

/// The next message of a socket, without waiting: its first two frames (the second empty where there is none). What
/// follows them is dropped, so that the rest of a stranger's message is not taken for the beginning of another. False
/// where no message waits.
bool receive_frames(zmq::socket_t& socket, zmq::message_t& first, zmq::message_t& second);

}  // namespace troupe
