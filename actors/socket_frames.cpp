#include "actors/socket_frames.h"

namespace troupe {

bool receive_frames(zmq::socket_t& socket, zmq::message_t& first, zmq::message_t& second) {
  if (!socket.recv(first, zmq::recv_flags::dontwait)) return false;
  if (first.more()) (void)socket.recv(second, zmq::recv_flags::dontwait);
  bool is_longer = second.more();
  while (is_longer) {
    zmq::message_t rest;
    (void)socket.recv(rest, zmq::recv_flags::dontwait);
    is_longer = rest.more();
  }
  return true;
}

}  // namespace troupe
