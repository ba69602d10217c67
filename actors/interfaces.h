// All typed interfaces, one contract line per message. Implementations are in the file named after the role.
//
//   director --work--> rollout --score--> reward --store--> [reference] --store--> buffer --batch--> trainer --> shard
//      ^  ^--generated/failed--'             answer of the buffer travels back to rollout           |  '--> [critic]
//      '---------------------------trained -> decision ---------------------------------------------'
//
// "tells" = free anon_send, no answer; "asks" = request with a time limit and an error handler, always.
#pragma once

#include <caf/fwd.hpp>
#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>
#include <caf/actor_control_block.hpp>

#include "actors/messages.h"

namespace troupe {

/// Gives train batches. Played by the buffer (RL) or the data actor (pre-training).
using batch_source_actor = caf::typed_actor<
    // Answers with the batch of this train step once it is complete, or with ec::interrupted.
    caf::replies_to<atom::batch, int64_t>::with<LocalBatch>>;

/// Holds the run's state and decides. Played by the director (RL) or the data actor (pre-training).
using run_control_actor = caf::typed_actor<
    // A step is trained and published; what next? Writes the step's metrics first.
    caf::replies_to<atom::trained, StepReport>::with<StepDecision>,
    // The trainer stands at a step's edge (at its start, or after an interrupted wait); what next?
    caf::replies_to<atom::decide>::with<StepDecision>,
    // Validation metrics of pre-training as JSON; what next?
    caf::replies_to<atom::validate, std::string>::with<StepDecision>,
    // The user wants to stop: leads to a decision {save, stop, interrupted} at the next edge.
    caf::reacts_to<atom::interrupt>,
    // What it holds and whom it waits for, as JSON; "text" of it for people.
    caf::replies_to<atom::status>::with<std::string>>;

/// Director: data cursor, slots, outstanding work, versions, journal and metrics.
using director_actor = run_control_actor::extend<
    // A rollout worker is ready: seat, room for samples, version it computes with, its handle.
    caf::reacts_to<atom::arrive, int32_t, int32_t, int64_t, caf::strong_actor_ptr>,
    // The worker computes with this version now.
    caf::reacts_to<atom::applied, int32_t, int64_t>,
    // The worker has made a sample (its room is free) and asks for its score.
    caf::reacts_to<atom::generated, SampleReport>,
    // An attempt came to nothing: retried or given up, counted.
    caf::reacts_to<atom::failed, SampleReport>,
    // The buffer accepted the sample's answer.
    caf::reacts_to<atom::finished, uint64_t>,
    // The buffer dropped a group: its slot is free.
    caf::reacts_to<atom::dropped, GroupDrop>,
    // The buffer handed out the batch of this step; its statistics as JSON.
    caf::reacts_to<atom::batch, int64_t, std::string>,
    // A worker's counters.
    caf::reacts_to<atom::progress, WorkerStatus>,
    // This reward actor does not answer; why. Handed on to the supervisor.
    caf::reacts_to<atom::overdue, caf::strong_actor_ptr, std::string>,
    // This worker leaves: what it holds goes to others.
    caf::reacts_to<atom::leave, int32_t>,
    // INTERNAL: looks for workers that hold work and make no progress.
    caf::reacts_to<atom::overdue>>;

/// Takes scored samples. Played by the buffer, and by the reference, which hands them on to it.
using sample_store_actor = caf::typed_actor<
    // A scored sample; answers what became of it (PutResult).
    caf::replies_to<atom::store, Packed>::with<int32_t>>;

/// Buffer: groups in flight and complete.
using buffer_actor = batch_source_actor::extend<
    // As sample_store_actor.
    caf::replies_to<atom::store, Packed>::with<int32_t>,
    // The director introduces itself.
    caf::reacts_to<atom::arrive, caf::strong_actor_ptr>,
    // A group gets its place; comes before any of its samples.
    caf::reacts_to<atom::admit, GroupTicket>,
    // The sample will never come.
    caf::reacts_to<atom::give_up, uint64_t, std::string>,
    // Everything held, packed, for a checkpoint.
    caf::replies_to<atom::snapshot>::with<Packed>,
    // The run is being stopped: a waiting batch request, and any later one, is answered with ec::interrupted.
    caf::reacts_to<atom::interrupt>,
    // What it holds, as JSON; "text" of it for people.
    caf::replies_to<atom::status>::with<std::string>>;

/// Reward: scores samples and hands them to the buffer.
using reward_actor = caf::typed_actor<
    // Answers with the buffer's answer (PutResult) once the buffer has the sample.
    caf::replies_to<atom::score, Packed>::with<int32_t>>;

/// Reward where others grade: hands samples to graders of other processes, and what they say to the buffer.
using reward_pool_actor = reward_actor::extend<
    // The same as score, for whoever hands samples on: of a reference, whose graders add log-probs.
    caf::replies_to<atom::store, Packed>::with<int32_t>,
    // A grader is ready, and who tells it: its guest, which is told where the grader is late.
    caf::reacts_to<atom::arrive, caf::strong_actor_ptr, caf::strong_actor_ptr>,
    // Graders, questions that they have, samples that wait, as JSON.
    caf::replies_to<atom::status>::with<std::string>,
    // INTERNAL: looks whether anybody grades.
    caf::reacts_to<atom::overdue>>;

/// Grader: runs the rules, in a process of its own.
using grader_actor = caf::typed_actor<
    // Answers with the sample and its rewards.
    caf::replies_to<atom::score, Packed>::with<Packed>>;

/// Rollout worker: owns a generation engine. One engine step a message, so that urgent messages get in between.
using rollout_actor = caf::typed_actor<
    // More samples.
    caf::reacts_to<atom::work, WorkOrder>,
    // The board holds this or a newer version: apply between two steps, then tell the director. Sent with high
    // priority.
    caf::reacts_to<atom::weights, int64_t>,
    // The reward actor was replaced.
    caf::reacts_to<atom::arrive, caf::strong_actor_ptr>,
    // What is here of samples that nobody else has, for a checkpoint (actors/unfinished.h).
    caf::replies_to<atom::snapshot>::with<Packed>,
    // INTERNAL: one engine step.
    caf::reacts_to<atom::next>,
    // INTERNAL: asks again for the score of this sample.
    caf::reacts_to<atom::score, uint64_t>>;

/// One rank of a trainer, critic or reference: model part, collectives. Every rank gets every message in the same
/// order.
using shard_actor = caf::typed_actor<
    // Builds and loads the model; rank 0 answers with a description (JSON).
    caf::replies_to<atom::load>::with<std::string>,
    // One train step; rank 0 answers with metrics (JSON).
    caf::replies_to<atom::train, LocalBatch>::with<std::string>,
    // Loss without update; rank 0 answers with metrics (JSON).
    caf::replies_to<atom::validate, LocalBatch>::with<std::string>,
    // What the model says of each sampled token: a critic values, a reference log-probs. The same from every rank.
    caf::replies_to<atom::judge, LocalBatch>::with<LocalNumbers>,
    // Makes this version's weights known to readers; rank 0 answers with metrics (JSON).
    caf::replies_to<atom::weights, int64_t>::with<std::string>,
    // Writes the checkpoint of this step with the decision's state; rank 0 answers with its metrics (JSON).
    caf::replies_to<atom::save, int64_t, StepDecision>::with<std::string>,
    // Writes a Hugging Face folder of this name inside the run folder.
    caf::replies_to<atom::write, std::string>::with<std::string>>;

/// Critic: a trainer's kin with a value a token, and an optimizer of its own. Falls with the trainer and the run.
using critic_actor = caf::typed_actor<
    // Builds and loads the model; answers with a description (JSON).
    caf::replies_to<atom::load>::with<std::string>,
    // A piece of the batch of this step (pack_trajectories): its number, of so many; answers with its number.
    caf::replies_to<atom::store, int64_t, int32_t, int32_t, Packed>::with<int32_t>,
    // Answers with the values of the tokens of that piece, in order, as floats, once all pieces are here.
    caf::replies_to<atom::judge, int64_t, int32_t>::with<Packed>,
    // One update towards the returns of that batch, with this KL coefficient in its rewards; metrics (JSON).
    caf::replies_to<atom::train, int64_t, double>::with<std::string>,
    // Writes its checkpoint of this step, whole before it answers.
    caf::replies_to<atom::save, int64_t>::with<std::string>,
    // Writes its Hugging Face folder.
    caf::replies_to<atom::write>::with<std::string>>;

/// Trainer: owns shards; asks for batches until the run control says stop.
using trainer_actor = caf::typed_actor<
    // Load, then train.
    caf::reacts_to<atom::next>,
    // The critic of another process is ready. Told by its guest; one that comes while there is one is not heard.
    caf::reacts_to<atom::arrive, caf::strong_actor_ptr>,
    // The user wants to stop: no critic is waited for any more. A run under way hears it from the run control.
    caf::reacts_to<atom::interrupt>,
    // INTERNAL: patience with the critic's coming is at its end.
    caf::reacts_to<atom::overdue>>;

/// Evaluator: greedy (or sampled) score of the newest published weights on held-out prompts.
using evaluator_actor = caf::typed_actor<
    // Answers with metrics (JSON) of the newest version at this step.
    caf::replies_to<atom::evaluate, int64_t>::with<std::string>>;

/// What workers of other processes see of the run before they are let in.
using door_actor = caf::typed_actor<
    // A worker wants to join: a welcome, or the reason why not. Asked by its guest.
    caf::replies_to<atom::hello, Hello>::with<Welcome>,
    // The worker in this seat leaves; answered once the director knows. Asked by its guest.
    caf::replies_to<atom::leave, int32_t>::with<int32_t>>;

/// Gate: lets workers in, and sees them off.
using gate_actor = door_actor::extend<
    // The run is over, how: every worker is told. Answers with how many had not gone when the limit came.
    caf::replies_to<atom::ended, std::string>::with<int32_t>,
    // Who asks workers of this role (of "reward": and whom rollout workers ask) is there, or was replaced.
    caf::reacts_to<atom::arrive, std::string, caf::strong_actor_ptr>,
    // The worker in this seat holds work and makes no progress; why. Told to its guest.
    caf::reacts_to<atom::overdue, int32_t, std::string>,
    // INTERNAL: the limit has come.
    caf::reacts_to<atom::next>>;

/// Guest: in the worker's process, joins a run and drives the rollout actor there.
using guest_actor = caf::typed_actor<
    // Answers when the worker has no run any more: exit code and cause ("" where there is none).
    caf::replies_to<atom::ended>::with<int32_t, std::string>,
    // The run is over, how.
    caf::reacts_to<atom::ended, std::string>,
    // The reward actor was replaced.
    caf::reacts_to<atom::arrive, caf::strong_actor_ptr>,
    // The run has no patience with this worker any more; why. It joins anew, or ends where its engine hangs.
    caf::reacts_to<atom::overdue, std::string>,
    // The user wants to stop.
    caf::reacts_to<atom::interrupt>,
    // INTERNAL: the grader of this seat has loaded its rules.
    caf::reacts_to<atom::load, int32_t>,
    // INTERNAL: patience with the rollout actor of this seat is at its end.
    caf::reacts_to<atom::overdue, int32_t>,
    // INTERNAL: another try to join.
    caf::reacts_to<atom::next>>;

/// Reporter: keeps <run folder>/status.json up to date, for whoever looks on.
using reporter_actor = caf::typed_actor<
    // The reward pool, or who has taken its place.
    caf::reacts_to<atom::arrive, caf::strong_actor_ptr>,
    // INTERNAL: the next look.
    caf::reacts_to<atom::next>>;

/// Supervisor: starts everybody, restarts rollout, reward and reference, ends the run.
using supervisor_actor = caf::typed_actor<
    // Answers when the run is over: exit code and cause ("" where there is none).
    caf::replies_to<atom::ended>::with<int32_t, std::string>,
    // The trainer has done its last step and save; true: interrupted.
    caf::reacts_to<atom::finished, bool>,
    // The run cannot go on, for this cause, but winds down by itself: a checkpoint, then `finished`.
    caf::reacts_to<atom::failed, std::string>,
    // The user wants to stop.
    caf::reacts_to<atom::interrupt>,
    // Patience with this rollout worker or reward actor is at its end: role, seat, who sat there, why.
    caf::reacts_to<atom::overdue, std::string, int32_t, caf::strong_actor_ptr, std::string>,
    // INTERNAL: the pause before a restart is over; role and seat.
    caf::reacts_to<atom::next, std::string, int32_t>>;

}  // namespace troupe
