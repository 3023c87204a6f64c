// Streams the answer to one chat message over gRPC. Usage: client ADDRESS TEXT [NAME=VALUE...]
//
// The answer goes to standard output, everything about it to standard error. Names: model, max_tokens, seed, cancel_after (deltas),
// deadline (seconds).
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	codepb "google.golang.org/genproto/googleapis/rpc/code"

	inference "armature/inference/v1"
)

func say(format string, values ...interface{}) {
	fmt.Fprintf(os.Stderr, format+"\n", values...)
}

// explain says the code and message of a failed call, and the google.rpc details that say why and what to do.
func explain(err error) {
	failed := status.Convert(err)
	say("error: %s: %s", codepb.Code_name[int32(failed.Code())], failed.Message())
	for _, detail := range failed.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			say("  reason: %s (%s), scope %s", detail.Reason, detail.Domain, detail.Metadata["scope"])
		case *errdetails.BadRequest:
			for _, violation := range detail.FieldViolations {
				say("  field: %s: %s", violation.Field, violation.Description)
			}
		case *errdetails.RetryInfo:
			delay := time.Duration(detail.RetryDelay.GetSeconds())*time.Second + time.Duration(detail.RetryDelay.GetNanos())
			say("  retry after: %d ms", delay.Milliseconds())
		}
	}
}

// number reads an option; without it, the default.
func number(options map[string]string, name string, otherwise uint64) uint64 {
	value, given := options[name]
	if !given {
		return otherwise
	}
	parsed, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		say("%s is no number: %s", name, value)
		os.Exit(64)
	}
	return parsed
}

func chat(client inference.InferenceServiceClient, text string, options map[string]string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	model := options["model"]
	if model == "" {
		listed, err := client.ListModels(ctx, &inference.ListModelsRequest{})
		if err != nil {
			return err
		}
		if len(listed.Models) == 0 {
			return status.Error(codes.NotFound, "no model is served")
		}
		model = listed.Models[0].Name
	}
	message := &inference.ChatMessage{Role: "user", Content: text}
	maxTokens := uint32(number(options, "max_tokens", 64))
	request := &inference.GenerateRequest{
		Model:    model,
		Input:    &inference.GenerateRequest_Messages{Messages: &inference.ChatMessages{Messages: []*inference.ChatMessage{message}}},
		Stop:     &inference.StopConditions{MaxTokens: &maxTokens},
		Sampling: &inference.SamplingParams{},
	}
	if _, given := options["seed"]; given {
		seed := number(options, "seed", 0)
		request.Sampling.Seed = &seed
	}
	if patience, given := options["deadline"]; given {
		seconds, err := time.ParseDuration(patience + "s")
		if err != nil {
			return err
		}
		ctx, cancel = context.WithTimeout(ctx, seconds)
		defer cancel()
	}

	stream, err := client.Generate(ctx, request)
	if err != nil {
		return err
	}
	deltas, cancelAfter := uint64(0), number(options, "cancel_after", 0)
	reason := inference.FinishReason_FINISH_REASON_UNSPECIFIED
	for {
		response, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		switch event := response.Event.(type) {
		case *inference.GenerateResponse_Started:
			say("started: %s on %s, seed %d", event.Started.Model, event.Started.DecodeWorker, event.Started.Seed)
		case *inference.GenerateResponse_Delta:
			fmt.Print(event.Delta.Text)
			if event.Delta.FinishReason != inference.FinishReason_FINISH_REASON_UNSPECIFIED {
				reason = event.Delta.FinishReason
			}
			deltas++
			if deltas == cancelAfter {
				// All work behind the stream ends, on every worker.
				cancel()
				say("cancelled: after %d deltas", deltas)
				return nil
			}
		case *inference.GenerateResponse_Finished:
			ended := strings.TrimPrefix(reason.String(), "FINISH_REASON_")
			say("finished: %s after %d tokens", ended, event.Finished.Usage.CompletionTokens)
		}
	}
}

func main() {
	if len(os.Args) < 3 {
		say("usage: client ADDRESS TEXT [NAME=VALUE...]")
		os.Exit(64)
	}
	options := map[string]string{}
	for _, argument := range os.Args[3:] {
		pair := strings.SplitN(argument, "=", 2)
		options[pair[0]] = pair[len(pair)-1]
	}
	connection, err := grpc.Dial(os.Args[1], grpc.WithInsecure())
	if err == nil {
		err = chat(inference.NewInferenceServiceClient(connection), os.Args[2], options)
	}
	if err != nil {
		explain(err)
		os.Exit(1)
	}
}
